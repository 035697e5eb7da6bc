"""Feature formulas of a symbolic program: their table, names, units and order."""

from __future__ import annotations
