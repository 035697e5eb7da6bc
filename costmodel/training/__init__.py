"""Training, evaluation and comparison of cost models."""

from __future__ import annotations
