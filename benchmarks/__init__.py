"""Benchmarks: each is one command that prints a table and writes JSON; see docs/results."""

from __future__ import annotations
