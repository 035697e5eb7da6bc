"""The symbolic program compared with the schedule that TVM makes of a sketch, by tests and the
check over all operators (`benchmarks.structure`)."""

from __future__ import annotations
