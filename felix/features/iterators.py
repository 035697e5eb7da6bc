"""The values that a block's iterators take over the whole launch, and counts of what accesses
touch at all points of a grid of them.

An iterator takes either its whole domain, or, in a block computed at a loop, the union of the
tiles its consumers need: copies of an interval at multiples of some steps. Where neighbouring
tiles touch or overlap, the union is an interval again; its length does not depend on the tiling
then.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import sympy
from numpy.typing import NDArray

from felix.symbolic import expr, index_expr, ir, loaded, scalar
from felix.symbolic.ir import Affine, Block, Scalar

#: (c, e): the values 0, c, 2c, ... of e iterations.
_Step = tuple[Scalar, Scalar]


@dataclasses.dataclass(frozen=True, slots=True)
class Visited:
    """Values an iterator takes: start, start + 1, ... if `dense`; `count` values in any case.

    `stripe` is (n, c) where they are intervals of n values that begin at start and every c
    values after it (one interval where c <= n).
    """

    start: Scalar
    length: Scalar
    count: Scalar
    stripe: tuple[Scalar, Scalar] | None = None

    @property
    def dense(self) -> bool:
        known = isinstance(self.length, int) and isinstance(self.start, int)
        return known and isinstance(self.count, int) and self.count == self.length


def visit(binding: Affine, block: Block, extent: Scalar) -> Visited:
    """Values a binding takes over the launch, cut to the iterator's domain."""
    for flat, bound in block.guards:
        if flat is binding or flat.terms == binding.terms:
            return Visited(0, bound, bound)
    guarded = [g for g, _ in block.guards]
    # a full component visibly takes all of its values, whatever the others do
    is_full = all(each.source is None or each.source.radix for each in binding.terms)
    if _is_guarded(binding, guarded) or not is_full:
        return Visited(0, extent, extent)
    start = binding.constant
    for component, coefficient in binding.terms.items():
        if scalar.is_negative(coefficient):
            start = start + coefficient * (component.extent - 1)
    steps = [
        (-c if scalar.is_negative(c) else c, comp.extent) for comp, c in binding.terms.items()
    ]
    length = scalar.plain(expr.expanded(1 + sum(c * e - c for c, e in steps)))
    reach, rest = _closed(steps)
    count = _union(reach, rest, length)
    if isinstance(length, int) and isinstance(start, int) and isinstance(extent, int):
        low, high = max(start, 0), min(start + length, extent)
        if count is length:
            return Visited(low, high - low, high - low)
        whole = len(rest) == 1 and (low, high) == (start, start + length)
        return Visited(low, high - low, count, (reach, rest[0][0]) if whole else None)
    if isinstance(extent, int) and isinstance(start, int) and count is length:
        return Visited(start, extent, extent)
    return Visited(start, length, count)


def _is_guarded(binding: Affine, guarded: list[Affine]) -> bool:
    return any(comp in flat.terms for flat in guarded for comp in binding.terms)


def _union(reach: Scalar, outer: list[_Step], length: Scalar) -> Scalar:
    """Size of {y + sum c_k x_k : 0 <= y < reach, 0 <= x_k < e_k}, (c_k, e_k) the outer steps;
    `length` itself if that is every value.

    Adding one step to an interval of length n gives an interval if c <= n, else e copies. Two
    orders are tried; the set is dense if it is in either.
    """
    if not outer:
        return length
    dense_any: Scalar = 0
    first: Scalar | None = None
    for order in (outer, outer[::-1]):
        size, far, dense = reach, reach, 1
        for c, e in order:
            closed = scalar.either(scalar.less_equal(c, far), scalar.equal(e, 1))
            dense = scalar.both(dense, closed)
            far = far + c * (e - 1)
            size = scalar.select(dense, far, size * e)
        first = size if first is None else first
        dense_any = scalar.either(dense_any, dense)
    return scalar.select(dense_any, length, first)


def _closed(steps: list[_Step]) -> tuple[Scalar, list[_Step]]:
    """(length, rest): the interval that steps without gaps form, and the steps left over.

    Steps of the rest that continue one another, c_2 = c_1 e_1, are joined.
    """
    reach: Scalar = 1
    rest = [(c, e) for c, e in steps if not scalar.is_static(e, 1)]
    while True:
        for step in rest:
            if _at_least(reach, step[0]):
                break
        else:
            return reach, _chained(rest)
        reach = scalar.plain(expr.expanded(reach + step[0] * step[1] - step[0]))
        rest = [s for s in rest if s is not step]


def _chained(steps: list[_Step]) -> list[_Step]:
    for a, b in itertools.permutations(steps, 2):
        if expr.expanded(a[0] * a[1] - b[0]) == 0:
            joined = (a[0], scalar.plain(expr.expanded(a[1] * b[1])))
            return _chained([joined, *(s for s in steps if s is not a and s is not b)])
    return steps


@functools.lru_cache(1 << 12)
def _at_least(a: Scalar, b: Scalar) -> bool:
    """a >= b for every value >= 1 of the variables, visibly: all coefficients of the difference
    in (variable - 1) are nonnegative."""
    difference = expr.expanded(sympy.sympify(a - b))
    if difference.is_number:
        return bool(difference >= 0)
    if _is_visibly_lower(difference):
        return False
    symbols = difference.free_symbols
    shifted = expr.expanded(difference.xreplace({s: s + 1 for s in symbols}))
    if any(f.is_Pow and f.exp.is_negative for f in shifted.atoms(sympy.Pow)):
        return False
    return all(term.as_coeff_Mul()[0] >= 0 for term in sympy.Add.make_args(shifted))


def _is_visibly_lower(difference: sympy.Expr) -> bool:
    """Whether a sum of monomials cannot have only nonnegative coefficients in (variable - 1):
    it is negative where all variables are 1, or has a quotient."""
    terms = sympy.Add.make_args(difference)
    if not all(map(expr.is_monomial, terms)):
        return False
    has_quotient = any(
        f.is_Pow and f.exp.is_negative for term in terms for f in sympy.Mul.make_args(term)
    )
    return has_quotient or sum(term.as_coeff_Mul()[0] for term in terms) < 0


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
    visited: Mapping[sympy.Symbol, Visited],
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
