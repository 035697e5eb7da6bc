"""`python -m costmodel`."""

from __future__ import annotations
