"""Data sets, features of their schedules, splits, and the workloads they are made of."""

from __future__ import annotations
