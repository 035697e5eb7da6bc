"""Sketches: design spaces with their variables, coordinates, samples and formulas."""

from __future__ import annotations
