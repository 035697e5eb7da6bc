"""Formulas compiled to batched functions with a reverse pass.

In: formulas.
Out: batched functions, forward and backward.
From: `space`, `search`, `tuning`.
"""

from __future__ import annotations
