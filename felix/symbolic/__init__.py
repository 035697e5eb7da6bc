"""Symbolic programs: loop nests whose sizes are expressions in the decision variables.

In: a trace and its program.
Out: a loop nest with expressions for extents.
From: `features`, `space`, `templates`, `autodiff`.
"""

from __future__ import annotations
