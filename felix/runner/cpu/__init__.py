"""Timing on a CPU, and what contends for its cores."""

from __future__ import annotations
