"""Counting by enumeration: what accesses touch at all points of a grid of iterators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import sympy
from numpy.typing import NDArray

from felix.features import iterators
from felix.symbolic import ir
from felix.symbolic.indices import index_expr, loaded

#: Points enumerated at most for one group of linked indices.
POINTS_LIMIT = 1 << 24
#: Boxes of elements of which each has a mark; what is touched of larger ones is sorted.
_MARKS_LIMIT = 1 << 27

#: An access's indices and the conditions under which it happens.
Touching = tuple[Sequence[sympy.Expr], Sequence[ir.Value]]

_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def n_touched(
    accesses: Sequence[Touching],
    symbols: Sequence[sympy.Symbol],
    visited: Mapping[sympy.Symbol, iterators.Visited],
) -> int:
    """How many tuples of indices the accesses have in all.

    Args:
        accesses: with equally many indices each.
        symbols: the iterators in them, whose values are dense.
        visited: those values.
    """
    axes = [np.arange(visited[s].start, visited[s].start + visited[s].length) for s in symbols]
    grid = dict(zip(symbols, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
    shape = tuple(len(axis) for axis in axes) or (1,)
    if 0 in shape:
        return 0
    columns = [[index_expr.evaluate(i, grid) for i in indices] for indices, _ in accesses]
    keeps = [_kept(conditions, grid, shape) for _, conditions in accesses]
    low, spans = _box(columns)
    if math.prod(spans) > np.iinfo(np.int64).max:
        rows = [
            np.stack([_at(column, shape, keep) for column in each], axis=1)
            for each, keep in zip(columns, keeps, strict=True)
        ]
        return len(np.unique(np.concatenate(rows), axis=0))
    flat = (
        _at(_flat(each, low, spans), shape, keep)
        for each, keep in zip(columns, keeps, strict=True)
    )
    return _n_distinct(flat, math.prod(spans))


def can_hold(value: ir.Value, grid: index_expr.Grid, truth: bool = True) -> NDArray[np.bool_]:
    """Where on a grid of points a condition can have this truth; one on loaded data always can."""
    if value.op == "not":
        return can_hold(value.args[0], grid, not truth)
    if value.op in ("and", "or"):
        a, b = (can_hold(x, grid, truth) for x in value.args)
        return a & b if (value.op == "and") == truth else a | b
    if is_of_iterators(value):
        left, right = (index_expr.evaluate(a.expr, grid) for a in value.args if a.expr is not None)
        return np.asarray(_COMPARE[value.op](left, right) == truth)
    return np.ones((1,) * max(1, len(grid)), dtype=np.bool_)


def is_of_iterators(value: ir.Value) -> bool:
    """Whether a value is a comparison that does not depend on data."""
    return value.op in _COMPARE and all(
        arg.expr is not None and not loaded.is_data(arg.expr) for arg in value.args
    )


def _kept(
    conditions: Sequence[ir.Value], grid: index_expr.Grid, shape: tuple[int, ...]
) -> NDArray[np.bool_] | None:
    """The points at which all conditions can hold; None: all points."""
    if not conditions:
        return None
    keep = np.ones(shape, dtype=bool)
    for condition in conditions:
        keep &= np.broadcast_to(can_hold(condition, grid), shape)
    return keep


def _box(columns: Sequence[Sequence[NDArray[np.int64]]]) -> tuple[list[int], list[int]]:
    """The least value of each index over all accesses, and how many there are from it on."""
    by_index = list(zip(*columns, strict=True))
    low = [min(int(np.min(column)) for column in each) for each in by_index]
    high = [max(int(np.max(column)) for column in each) for each in by_index]
    return low, [last - first + 1 for first, last in zip(low, high, strict=True)]


def _flat(
    columns: Sequence[NDArray[np.int64]], low: Sequence[int], spans: Sequence[int]
) -> NDArray[np.int64]:
    """Tuples of indices as numbers, row by row of the box."""
    flat = np.zeros(1, dtype=np.int64)
    for column, first, span in zip(columns, low, spans, strict=True):
        flat = flat * span + (column - first)
    return flat


def _at(
    values: NDArray[np.int64], shape: tuple[int, ...], keep: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Values at the points that are kept."""
    at_all = np.broadcast_to(values, shape)
    return at_all.reshape(-1) if keep is None else at_all[keep]


def _n_distinct(groups: Iterator[NDArray[np.int64]], n_numbers: int) -> int:
    """How many of so many numbers, from 0 on, there are."""
    if n_numbers > _MARKS_LIMIT:
        return len(np.unique(np.concatenate([np.unique(group) for group in groups])))
    marks = np.zeros(n_numbers, dtype=bool)
    for group in groups:
        marks[group] = True
    return int(np.count_nonzero(marks))
