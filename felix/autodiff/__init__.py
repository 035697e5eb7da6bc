"""Formulas compiled to batched functions with a reverse pass."""

from __future__ import annotations
