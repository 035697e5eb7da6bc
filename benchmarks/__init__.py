"""Benchmarks: each is one command that prints a table and writes JSON; see docs/benchmarks.md."""

from __future__ import annotations
