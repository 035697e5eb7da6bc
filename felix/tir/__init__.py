"""TIR programs: validated, costed, rehearsed in a child process, written as numpy."""

from __future__ import annotations
