"""TIR programs: read, proved to stay in their buffers, costed, rehearsed, written as numpy."""

from __future__ import annotations
