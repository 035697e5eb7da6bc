"""The version of the package: a module of its own, so that nothing imports `felix` for it."""

from __future__ import annotations

__version__ = "0.1.0"
