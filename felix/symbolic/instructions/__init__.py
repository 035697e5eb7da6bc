"""Schedule instructions on the symbolic program, one function each."""

from __future__ import annotations
