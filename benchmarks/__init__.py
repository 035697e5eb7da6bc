"""Benchmarks: each is one command that prints a table and writes JSON (docs/results/README.md)."""

from __future__ import annotations
