"""How much of a dimension one allocation of a buffer touches, counted exactly.

touched: number of values between the least and the greatest index that one allocation meets.
Iterations that a boundary predicate skips do not count.

Iterations are too many to visit: they multiply with each loop. But an index and the conditions of
a predicate are sums of terms, and loops that share no term add to them independently of each
other. So distinct sums are kept in place of iterations, and loops are added one after the other.
There are about as many as an index has values: how far a condition is met does not matter.

Accesses to the dimension are sums of terms: an index, and the conditions of the boundary
predicate. One allocation of the buffer sees all iterations of the loops inside its place, and of
the threads that share it: inner loops. Of the other loops, the outer ones, it sees one iteration.

Notation
    column  a sum: the index of an access, or a condition, which holds where it is 1 or more
    piece   columns of an access that share inner loops
    group   loops that share terms
    U, R, C iterations of a group's outer loops and of its inner loops; columns of a piece
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import sym, tirx
from tvm.ir.expr import Call

from benchmarks.support.verify import tvm_schedule
from felix.errors import UnsupportedSchedule
from felix.tir import grammar, numeric

Sums: TypeAlias = NDArray[np.int64]

#: Numbers that an array may have: 256 MiB.
_MAX_NUMBERS = 2**25
#: Above all indices: the least of none.
_FAR = np.iinfo(np.int64).max // 4


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What a group adds to the columns of a piece: base [U, C] + patterns[pattern[U]] [R, C]."""

    base: Sums
    pattern: Sums
    patterns: Sums


def count(module: tvm.IRModule, label: str, dimension: int) -> int:
    """What the largest allocation of a buffer touches of a dimension.

    Raises:
        UnsupportedSchedule: an index depends on data, or on too many loops at once.
    """
    limited = [
        [piece for piece in pieces if piece.has_index or not _is_always_possible(piece)]
        for pieces in pieces_of(module, label, dimension)
    ]
    bounds = iter(_bounds([piece for pieces in limited for piece in pieces]))
    lows, highs = [], []
    for pieces in limited:
        low, high = next(bounds)
        for _ in pieces[1:]:
            skipped = next(bounds)[0] == _FAR
            low, high = np.where(skipped, _FAR, low), np.where(skipped, -_FAR, high)
        lows.append(low)
        highs.append(high)
    spans = functools.reduce(np.maximum, highs) - functools.reduce(np.minimum, lows)
    return int(spans.max()) + 1


def _is_always_possible(piece: Piece) -> bool:
    """Whether each iteration of the outer loops meets the conditions of a piece somewhere."""
    ((low, _),) = _bounds([piece])
    return bool((low < _FAR).all())


def _bounds(pieces: Sequence[Piece]) -> list[tuple[Sums, Sums]]:
    """(least, greatest) first column of each piece where its conditions hold.

    There is one for each distinct row of sums that iterations of the outer loops give all pieces.
    """
    outer: dict[Any, int] = {}
    for piece in pieces:
        outer |= {v: n for v, n in piece.extents.items() if v not in piece.inner}
    groups = _groups(pieces)
    parts = [[_part(piece, group, outer) for group in groups] for piece in pieces]
    rows = _outer_sums(pieces, parts)
    widths = [len(piece.columns) + len(groups) for piece in pieces]
    own = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    return [_piece_bounds(*each) for each in zip(pieces, parts, own, strict=True)]


def _groups(pieces: Iterable[Piece]) -> list[list[Any]]:
    """Loops that share terms, directly or not; first none, which is where constants belong."""
    terms = [term for piece in pieces for column in piece.columns for _, term in column]
    used = [loops for term in terms if (loops := tvm_schedule.variables(term))]
    shared = connected(used)
    return [[], *(list(dict.fromkeys(v for i in numbers for v in used[i])) for numbers in shared)]


def _part(piece: Piece, group: Sequence[Any], outer: Mapping[Any, int]) -> _Part:
    """What a group adds to a piece; `outer` are the extents of the outer loops of all pieces."""
    outside = [v for v in group if v in outer]
    inside = [v for v in group if v in piece.extents and v in piece.inner]
    shape = [*(outer[v] for v in outside), *(piece.extents[v] for v in inside)]
    size, columns = math.prod(shape), len(piece.columns)
    _check_size(size * columns)
    places = np.indices(shape, dtype=np.int64, sparse=True)
    grid = dict(zip([*outside, *inside], places, strict=True))
    table = np.zeros((*shape, columns), np.int64)
    for number, column in enumerate(piece.columns):
        for factor, term in column:
            own = set(tvm_schedule.variables(term))
            if own <= set(group) and bool(own) == bool(group):
                table[..., number] += factor * numeric.evaluate(term, grid)
    n_outer = math.prod(shape[: len(outside)])
    table = table.reshape(n_outer, -1, columns)
    base = table[:, 0]
    patterns, pattern = _distinct((table - base[:, None]).reshape(n_outer, -1))
    return _Part(base, pattern, patterns.reshape(-1, *table.shape[1:]))


def _outer_sums(pieces: Sequence[Piece], parts: Sequence[Sequence[_Part]]) -> Sums:
    """What outer loops add to the columns of each piece, and after them the pattern of each group.

    A group's pattern has a place to which other groups add nothing.
    """
    n_groups = len(parts[0])
    tables: list[list[Sums]] = [[] for _ in range(n_groups)]
    is_condition, around = [], []
    no_patterns = np.zeros(n_groups, np.int64)
    for piece, own in zip(pieces, parts, strict=True):
        for number, part in enumerate(own):
            patterns = np.zeros((len(part.base), n_groups), np.int64)
            patterns[:, number] = part.pattern
            tables[number] += [part.base, patterns]
        inner = (
            sum(part.patterns.min(axis=(0, 1)) for part in own),
            sum(part.patterns.max(axis=(0, 1)) for part in own),
        )
        is_condition += [piece.is_condition, no_patterns > 0]
        around += [np.stack(inner), np.stack([no_patterns, no_patterns])]
    return _distinct_sums(
        [np.concatenate(each, axis=1) for each in tables],
        np.concatenate(is_condition),
        np.concatenate(around, axis=1),
    )


def _distinct_sums(tables: Sequence[Sums], is_condition: NDArray[np.bool_], around: Sums) -> Sums:
    """[n, columns] the distinct sums of a row of each table [*, columns].

    Conditions are cut to what decides whether they hold, whichever row of `around` is added.
    """
    left = [*tables, around]
    for number, table in enumerate(tables):
        left[number] = _cut(table, left[:number] + left[number + 1 :], is_condition)
    rows = left.pop(0)
    while len(left) > 1:
        added = left.pop(0)
        _check_size(len(rows) * added.size)
        sums = (rows[:, None] + added).reshape(-1, rows.shape[1])
        rows = _cut(sums, left, is_condition)
    return rows


def _cut(table: Sums, others: Sequence[Sums], is_condition: NDArray[np.bool_]) -> Sums:
    """The distinct rows, conditions no further from 1 than a row of each other table reaches."""
    least = sum(other.min(axis=0) for other in others)
    most = sum(other.max(axis=0) for other in others)
    return _distinct(np.where(is_condition, np.clip(table, -most, 1 - least), table))[0]


def _distinct(rows: Sums) -> tuple[Sums, NDArray[np.intp]]:
    """The distinct rows, and for each row its number among them."""
    low = rows.min(axis=0)
    extents = (rows.max(axis=0) - low + 1).tolist()
    if math.prod(extents) >= _FAR:
        distinct, number = np.unique(rows, axis=0, return_inverse=True)
        return distinct, number.reshape(-1)
    # One number a row: these are sorted faster.
    keys = (rows - low) @ np.cumprod([1, *extents[:-1]])
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], number


def _piece_bounds(piece: Piece, parts: Sequence[_Part], rows: Sums) -> tuple[Sums, Sums]:
    """`_bounds` of one piece, from its columns and patterns in each row of outer sums."""
    columns = len(piece.columns)
    distinct, number = _distinct(rows)
    low, high = np.full(len(distinct), _FAR), np.full(len(distinct), -_FAR)
    for chosen in _distinct(distinct[:, columns:])[0]:
        (places,) = np.nonzero((distinct[:, columns:] == chosen).all(axis=1))
        patterns = [part.patterns[i] for part, i in zip(parts, chosen, strict=True)]
        inner = _distinct_sums(patterns, piece.is_condition, distinct[places, :columns])
        for some in np.array_split(places, math.ceil(len(places) * inner.size / _MAX_NUMBERS)):
            sums = distinct[some, None, :columns] + inner
            keep = (sums[..., piece.is_condition] >= 1).all(axis=-1)
            low[some] = np.where(keep, sums[..., 0], _FAR).min(axis=1)
            high[some] = np.where(keep, sums[..., 0], -_FAR).max(axis=1)
    return low[number], high[number]


def _check_size(numbers: int) -> None:
    if numbers > _MAX_NUMBERS:
        raise UnsupportedSchedule(
            f"indices of a buffer depend on too many loops to count what is touched: "
            f"{numbers:.1e} sums, of at most {_MAX_NUMBERS:.1e}"
        )


#: Thread loops outside of the site that a buffer of the scope spans all the same.
_SPANNED = {"shared": ("threadIdx", "vthread"), "local": ()}


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Columns of one access, each a list of (factor, term); the first is an index or none is."""

    columns: list[list[tuple[int, Any]]]
    has_index: bool
    extents: dict[Any, int]
    inner: set[Any]

    @property
    def is_condition(self) -> NDArray[np.bool_]:
        """Of each column, all but an index."""
        return np.arange(len(self.columns)) >= int(self.has_index)


def pieces_of(module: tvm.IRModule, label: str, dimension: int) -> Iterator[list[Piece]]:
    """The pieces of each access to one dimension of a buffer, that of its index first."""
    placed = tvm_schedule.allocated(module)[label]
    buffer = next(b for b, other in tvm_schedule.labels_of(module).items() if other == label)
    spanned = _SPANNED.get(placed.scope.split(".")[0], ("threadIdx", "vthread", "blockIdx"))
    depth = len(placed.site)
    for stage in tvm_schedule.stages(module):
        inner = {
            variable
            for i, (variable, loop) in enumerate(zip(stage.variables, stage.loops, strict=True))
            if i >= depth or bool(spanned and (loop.thread or "").startswith(spanned))
        }
        for index in indices(stage, buffer, dimension):
            yield _pieces(stage, index, inner)


def indices(stage: tvm_schedule.Stage, buffer: Any, dimension: int) -> list[Any]:
    """Index expressions, in the block's iterators, of the stage's accesses to the buffer."""
    stores = [each for each in (*stage.stores, *stage.inits) if each.buffer.same_as(buffer)]
    parts = (part for value in stage.values for part in grammar.expressions(value))
    loads = [each for each in filter(grammar.is_load, parts) if each.source.same_as(buffer)]
    return [each.indices[dimension] for each in (*stores, *loads)]


def _pieces(stage: tvm_schedule.Stage, index: Any, inner: set[Any]) -> list[Piece]:
    realize = stage.realize
    iterators = [iterator.var for iterator in realize.block.iter_vars]
    bindings = dict(zip(iterators, realize.iter_values, strict=True))
    extents = dict(zip(stage.variables, (loop.extent for loop in stage.loops), strict=True))
    analyzer = sym.Analyzer()
    for variable, extent in extents.items():
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    bound = grammar.substituted(index, bindings)
    sums = [analyzer.simplify(each) for each in (bound, *_conditions(realize.predicate))]
    used = [tvm_schedule.variables(each) for each in sums]
    pieces = []
    for numbers in connected([[v for v in each if v in inner] for each in used]):
        depends = {v: extents[v] for number in numbers for v in used[number]}
        columns = [list(_terms(sums[number])) for number in numbers]
        pieces.append(Piece(columns, 0 in numbers, depends, inner))
    return pieces


def _conditions(predicate: Any) -> Iterator[Any]:
    """Expressions that are all 1 or more where the predicate holds."""
    if isinstance(predicate, Call) and str(predicate.op.name).endswith(".likely"):
        yield from _conditions(predicate.args[0])
    elif isinstance(predicate, tirx.And):
        yield from _conditions(predicate.a)
        yield from _conditions(predicate.b)
    elif type(predicate) in _MARGINS and tvm_schedule.is_integer(predicate.a):
        yield _MARGINS[type(predicate)](predicate.a, predicate.b)
    else:
        yield predicate.astype("int32")


#: How far a comparison of integers is met: 1 or more where it is.
_MARGINS: dict[type[Any], Any] = {
    tirx.LT: lambda a, b: b - a,
    tirx.LE: lambda a, b: b - a + 1,
    tirx.GT: lambda a, b: a - b,
    tirx.GE: lambda a, b: a - b + 1,
}


def _terms(node: Any, factor: int = 1) -> Iterator[tuple[int, Any]]:
    """The terms of an expression, and what each is multiplied with."""
    if not tvm_schedule.is_integer(node):
        yield factor, node
    elif isinstance(node, (tirx.Add, tirx.Sub)):
        yield from _terms(node.a, factor)
        yield from _terms(node.b, -factor if isinstance(node, tirx.Sub) else factor)
    elif isinstance(node, tirx.Mul) and isinstance(node.b, tirx.IntImm):
        yield from _terms(node.a, factor * int(node.b.value))
    else:
        yield factor, node


def connected(owned: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Numbers of sequences that have items in common, directly or not; each list ascends."""
    components: list[tuple[list[int], set[Any]]] = []
    for number, items in enumerate(owned):
        met = [each for each in components if each[1].intersection(items)]
        numbers = [number, *(other for each in met for other in each[0])]
        joined = set(items).union(*(each[1] for each in met))
        components = [*(each for each in components if each not in met), (numbers, joined)]
    return sorted(sorted(numbers) for numbers, _ in components)
