"""Feature formulas of a symbolic program: their table, names, units and order.

In: a symbolic program.
Out: a formula for each column of each store.
From: `space`, `search`, `costmodel`.
"""

from __future__ import annotations
