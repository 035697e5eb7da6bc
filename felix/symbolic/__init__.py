"""Symbolic programs: loop nests whose sizes are expressions in the decision variables."""

from __future__ import annotations
