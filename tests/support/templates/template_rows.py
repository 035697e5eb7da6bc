"""Features of a template at some decisions, by the functions that the search compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from felix.autodiff import program
from felix.symbolic import expr
from felix.templates.template import Template


def rows_of(template: Template, decisions: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Values by kernel and feature."""
    rows = template.rows()
    expressions = [value for row in rows.values() for value in row.values()]
    values = iter(_at(template, expressions, [decisions])[0])
    return {kernel: {name: float(next(values)) for name in row} for kernel, row in rows.items()}


def hold(template: Template, every: Sequence[Mapping[str, int]]) -> list[bool]:
    """Whether the constraints that the search compiles hold, of each of several decisions."""
    values = _at(template, [value for _, value in template.constraints()], every)
    return (values <= 0).all(axis=1).tolist()


def _at(template: Template, expressions: list[Any], every: Sequence[Mapping[str, int]]) -> Any:
    names = [p.name for p in template.parameters]
    compiled = program.FormulaProgram.compile(expressions, [expr.variable(name) for name in names])
    points = [[decisions[name] for name in names] for decisions in every]
    return compiled.exact(np.array(points, dtype=np.float64))
