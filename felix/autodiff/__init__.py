"""Formulas compiled to batched functions with a reverse pass.

In: formulas.
Out: batched functions, forward and backward.
From: `sketch`, `search`.
"""

from __future__ import annotations
