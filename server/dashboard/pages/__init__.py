"""One module a page."""

from __future__ import annotations
