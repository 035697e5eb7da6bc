"""Schedules of a similar task as first candidates: its decisions, moved to other extents.

A loop of another extent keeps its inner factors, which fit caches and vectors, and its outermost
factor takes up the difference; then the nearest legal tilings are taken (`search.rounding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from felix.known_results import outcome
from felix.search import rounding

if TYPE_CHECKING:
    from felix.sketch.sketch import Sketch

#: Legal schedules nearest to each known one.
NEAREST = 2


def first_schedules(
    known: Iterable[outcome.Outcome], sketches: Sequence[Sketch]
) -> list[tuple[str, Sequence[int]]]:
    """(sketch key, decisions) to measure first, from what is known of similar tasks.

    A schedule of a sketch that is here is taken as it is; another one is adapted to the sketch
    with the same number, variant and variables, if there is one.
    """
    schedules: list[tuple[str, Sequence[int]]] = []
    for result in known:
        if result.schedule is None:
            continue
        for sketch in sketches:
            if sketch.key == result.schedule.sketch_key:
                schedules.append((sketch.key, result.schedule.row))
            elif _is_alike(sketch, result.schedule):
                rows = _nearest(sketch, result.schedule)
                schedules += [(sketch.key, row) for row in rows]
    return schedules


def _is_alike(sketch: Sketch, schedule: outcome.Schedule) -> bool:
    names = [variable.name for variable in sketch.variables]
    return (
        sketch.index == schedule.sketch_index
        and str(sketch.variant) == schedule.variant
        and names == [each.name for each in schedule.decisions]
    )


def _nearest(sketch: Sketch, schedule: outcome.Schedule) -> list[tuple[int, ...]]:
    """Legal rows of decisions of a sketch that are nearest to those of another one."""
    values = np.asarray([float(each.value) for each in schedule.decisions])
    for position, variable in enumerate(sketch.variables):
        known = schedule.decisions[position]
        if variable.extent is not None and known.extent is not None and variable.part == 0:
            values[position] *= variable.extent / known.extent
        elif variable.kind == "choice":
            values[position] = np.clip(values[position], variable.domain[0], variable.domain[-1])
    rounded, _ = rounding.Rounder(sketch.variables).round(values[None], NEAREST)
    return [tuple(int(value) for value in row) for row in rounded[0]]
