"""How many distinct elements of a buffer a store touches over the whole launch.

A block's iterators visit either their whole domain, or, for a block computed at a loop, the
union of the tiles its consumers need: copies of an interval at multiples of some steps. Where
neighbouring tiles touch or overlap, the union is an interval again; its length does not depend
on the tiling then, and conditions such as padding can be counted once, by enumeration.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import sympy
from numpy.typing import NDArray

from felix.features import stores
from felix.symbolic import expr, ir, scalar
from felix.symbolic.ir import Access, Affine, Block, Scalar

#: Points enumerated at most for one group of linked indices.
ENUMERATION_LIMIT = 1 << 24


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
        return self.count is self.length and isinstance(self.length, int)


def elements(row: stores.Row, accesses: list[Access]) -> Scalar:
    """Distinct elements touched by the accesses (all to one buffer)."""
    visited = {
        it.symbol: visit(binding, row.block, it.extent)
        for it, binding in zip(row.block.iters, row.block.bindings, strict=True)
    }
    conditions = {access: _conditions(row.store.value, access) for access in accesses}
    joined = _joined(accesses, visited)
    if joined:
        conditions = {
            _renamed_access(a, joined): [_renamed(c, joined) for c in conditions[a]]
            for a in accesses
        }
        accesses = list(conditions)
    if len(accesses) == 1:
        return _one(accesses[0], conditions[accesses[0]], visited)
    counts = [_one(a, conditions[a], visited) for a in accesses]
    return _several(accesses, conditions, visited, counts)


def _joined(
    accesses: list[Access], visited: dict[sympy.Symbol, Visited]
) -> dict[sympy.Expr, sympy.Symbol]:
    """Sums n * a + b of two iterators, b < n, that a split (rfactor) made of one iterator.

    Each is given a symbol of its own, which is added to `visited`.
    """
    joined: dict[sympy.Expr, sympy.Symbol] = {}
    if all(isinstance(v.length, int) for v in visited.values()):
        return joined
    sums = {s for a in accesses for index in a.indices for s in index.atoms(sympy.Add)}
    for total in sums:
        pair = {term.as_independent(*visited)[1]: term for term in total.args}
        if len(pair) != 2 or not pair.keys() <= visited.keys():
            continue
        for outer, inner in (tuple(pair), tuple(pair)[::-1]):
            n, size = pair[outer] / outer, visited[inner].length
            length = scalar.plain(sympy.expand(visited[outer].length * size))
            if pair[inner] == inner and sympy.expand(n - size) == 0 and isinstance(length, int):
                joined[total] = sympy.Dummy(integer=True, nonnegative=True)
                visited[joined[total]] = Visited(0, length, length)
                break
    return joined


def _renamed_access(access: Access, names: dict[sympy.Expr, sympy.Symbol]) -> Access:
    return Access(access.buffer, tuple(index.xreplace(names) for index in access.indices))


def _renamed(value: ir.Value, names: dict[sympy.Expr, sympy.Symbol]) -> ir.Value:
    return dataclasses.replace(
        value,
        args=tuple(_renamed(a, names) for a in value.args),
        access=None if value.access is None else _renamed_access(value.access, names),
        expr=None if value.expr is None else value.expr.xreplace(names),
    )


def visit(binding: Affine, block: Block, extent: Scalar) -> Visited:
    """Values a binding takes over the launch, cut to the iterator's domain."""
    guarded = [g for g, _ in block.guards]
    if _is_guarded(binding, guarded) or not all(map(_is_full, binding.terms)):
        return Visited(0, extent, extent)
    start = binding.constant
    for component, coefficient in binding.terms.items():
        if scalar.is_negative(coefficient):
            start = start + coefficient * (component.extent - 1)
    steps = [
        (-c if scalar.is_negative(c) else c, comp.extent) for comp, c in binding.terms.items()
    ]
    length = scalar.plain(sympy.expand(1 + sum(c * (e - 1) for c, e in steps)))
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


def _is_full(component: ir.IterComponent) -> bool:
    """Whether the component visibly takes all of its values, whatever the others do."""
    return component.source is None or component.source.radix


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
        reach = scalar.plain(sympy.expand(reach + step[0] * (step[1] - 1)))
        rest = [s for s in rest if s is not step]


def _chained(steps: list[_Step]) -> list[_Step]:
    for a, b in itertools.permutations(steps, 2):
        if sympy.expand(a[0] * a[1] - b[0]) == 0:
            joined = (a[0], scalar.plain(sympy.expand(a[1] * b[1])))
            return _chained([joined, *(s for s in steps if s is not a and s is not b)])
    return steps


@functools.lru_cache(1 << 12)
def _at_least(a: Scalar, b: Scalar) -> bool:
    """a >= b for every value >= 1 of the variables, visibly: all coefficients of the difference
    in (variable - 1) are nonnegative."""
    difference = sympy.sympify(a - b)
    if difference.is_number:
        return bool(difference >= 0)
    shifted = sympy.expand(
        sympy.expand(difference).xreplace({s: s + 1 for s in difference.free_symbols})
    )
    if any(f.is_Pow and f.exp.is_negative for f in shifted.atoms(sympy.Pow)):
        return False
    return all(term.as_coeff_Mul()[0] >= 0 for term in sympy.Add.make_args(shifted))


# ---------------------------------------------------------------- conditions


def _conditions(value: ir.Value, access: Access) -> list[ir.Value]:
    """Conditions under which a store's value loads `access`; none if it always does, or if the
    access is the store's target."""
    paths = _paths(value, access)
    if not paths or [] in paths:
        return []
    if len(paths) == 1:
        return paths[0]
    ways = [functools.reduce(lambda a, b: ir.Value("and", False, (a, b)), p) for p in paths]
    return [functools.reduce(lambda a, b: ir.Value("or", False, (a, b)), ways)]


def _paths(value: ir.Value, access: Access) -> list[list[ir.Value]]:
    """The if_then_else conditions around each load of `access`."""
    if value.access == access:
        return [[]]
    paths = []
    for number, arg in enumerate(value.args):
        for path in _paths(arg, access):
            if value.op == "if" and number > 0:
                condition = value.args[0]
                if number == 2:
                    condition = ir.Value("not", False, (condition,))
                path = [condition, *path]
            paths.append(path)
    return paths


def _conjuncts(conditions: list[ir.Value]) -> list[ir.Value]:
    result = []
    for condition in conditions:
        if condition.op == "and":
            result += _conjuncts(list(condition.args))
        else:
            result.append(condition)
    return result


def _symbols(value: ir.Value) -> set[sympy.Symbol]:
    symbols: set[sympy.Symbol] = set()
    for node in value.walk():
        if node.expr is not None:
            symbols |= node.expr.free_symbols
        if node.access is not None:
            for index in node.access.indices:
                symbols |= index.free_symbols
    return symbols


# ---------------------------------------------------------------- counting


def _one(
    access: Access, conditions: list[ir.Value], visited: dict[sympy.Symbol, Visited]
) -> Scalar:
    """Distinct index tuples of one access: a product over groups of linked dimensions."""
    tests = _conjuncts(conditions)
    total: Scalar = 1
    for indices, symbols in _groups(access, tests, visited):
        linked_tests = [t for t in tests if _symbols(t) & symbols]
        total = total * _group(indices, symbols, linked_tests, visited)
    return total


def _groups(
    access: Access, tests: list[ir.Value], visited: dict[sympy.Symbol, Visited]
) -> list[tuple[list[sympy.Expr], set[sympy.Symbol]]]:
    groups: list[tuple[list[sympy.Expr], set[sympy.Symbol]]] = []
    items: list[tuple[sympy.Expr | None, set[sympy.Symbol]]] = [
        (index, index.free_symbols & set(visited)) for index in access.indices
    ]
    items += [(None, _symbols(test) & set(visited)) for test in tests]
    for index, symbols in items:
        if not symbols:
            continue
        linked = [g for g in groups if g[1] & symbols]
        groups = [g for g in groups if not g[1] & symbols]
        indices = [i for g in linked for i in g[0]] + ([index] if index is not None else [])
        groups.append((indices, set().union(symbols, *[g[1] for g in linked])))
    return groups


def _group(
    indices: list[sympy.Expr],
    symbols: set[sympy.Symbol],
    tests: list[ir.Value],
    visited: dict[sympy.Symbol, Visited],
) -> Scalar:
    if not indices:
        return 1
    if not tests and len(indices) == 1 and indices[0].is_Symbol:
        return visited[indices[0]].count
    if len(indices) == len(symbols) == 1 and not visited[next(iter(symbols))].dense:
        striped = _striped(indices[0], next(iter(symbols)), tests, visited)
        if striped is not None:
            return striped
    if all(visited[s].dense for s in symbols):
        points = ir.product(visited[s].length for s in symbols)
        if points <= ENUMERATION_LIMIT:
            return _enumerate(indices, sorted(symbols, key=str), tests, visited)
    return _estimate(indices, symbols, visited)


def _striped(
    index: sympy.Expr,
    symbol: sympy.Symbol,
    tests: list[ir.Value],
    visited: dict[sympy.Symbol, Visited],
) -> Scalar | None:
    """Values of a striped iterator that an interval condition lets pass, or None if not so.

    With x the distance from the start, the stripes hold n floor(x / c) + min(x mod c, n) values
    below x; where c <= n they are one interval.
    """
    values = visited[symbol]
    if values.stripe is None or not (index - symbol).is_number:
        return None
    grid = {symbol: np.arange(values.start, values.start + values.length)}
    keep = np.ones(values.length, dtype=bool)
    for test in tests:
        keep = keep & can_hold(test, grid)
    low, high = int(keep.argmax()), values.length - int(keep[::-1].argmax())
    if not keep[low:high].all() or not keep.any():
        return None
    n, c = values.stripe
    below = [
        n * scalar.floor_div(x, c) + scalar.minimum(scalar.floor_mod(x, c), n) for x in (low, high)
    ]
    return scalar.select(scalar.less_equal(c, n), high - low, below[1] - below[0])


def _enumerate(
    indices: list[sympy.Expr],
    symbols: list[sympy.Symbol],
    tests: list[ir.Value],
    visited: dict[sympy.Symbol, Visited],
) -> int:
    axes = [np.arange(visited[s].start, visited[s].start + visited[s].length) for s in symbols]
    grid = dict(zip(symbols, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
    shape = tuple(len(a) for a in axes)
    keep = np.ones(shape, dtype=bool)
    for test in tests:
        keep &= np.broadcast_to(can_hold(test, grid), shape)
    columns = [np.broadcast_to(evaluate_index(i, grid), shape)[keep] for i in indices]
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        low, high = (column.min(), column.max()) if len(column) else (0, 0)
        key = key * int(high - low + 1) + (column - low)
    return len(np.unique(key))


def _estimate(
    indices: list[sympy.Expr], symbols: set[sympy.Symbol], visited: dict[sympy.Symbol, Visited]
) -> Scalar:
    """Where tiles leave gaps, or there are too many points: at most one element a visit."""
    visits = ir.product(visited[s].count for s in symbols)
    spans = {s: visited[s].length for s in symbols}
    origin = {s: visited[s].start for s in symbols}
    box = ir.product(stores.index_span(i, spans, origin) for i in indices)
    return scalar.minimum(visits, box)


def _several(
    accesses: list[Access],
    conditions: dict[Access, list[ir.Value]],
    visited: dict[sympy.Symbol, Visited],
    counts: list[Scalar],
) -> Scalar:
    """Union over several accesses: enumerated where possible, else their sum."""
    symbols = sorted(visited, key=str)
    used = [s for s in symbols if any(s in i.free_symbols for a in accesses for i in a.indices)]
    points = ir.product(visited[s].length for s in used)
    if not all(visited[s].dense for s in used) or points > ENUMERATION_LIMIT:
        return sum(counts[1:], start=counts[0])
    touched: set[tuple[int, ...]] = set()
    axes = [np.arange(visited[s].start, visited[s].start + visited[s].length) for s in used]
    grid = dict(zip(used, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
    shape = tuple(len(a) for a in axes)
    for access in accesses:
        keep = np.ones(shape, dtype=bool)
        for test in _conjuncts(conditions[access]):
            keep &= np.broadcast_to(can_hold(test, grid), shape)
        columns = [np.broadcast_to(evaluate_index(i, grid), shape)[keep] for i in access.indices]
        touched.update(zip(*(c.tolist() for c in columns), strict=True))
    return len(touched)


_Grid = dict[sympy.Symbol, NDArray[np.int64]]

_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def can_hold(value: ir.Value, grid: _Grid, truth: bool = True) -> NDArray[np.bool_]:
    """Where on a grid of points a condition can have this truth; one on loaded data always can."""
    if value.op == "not":
        return can_hold(value.args[0], grid, not truth)
    if value.op in ("and", "or"):
        a, b = (can_hold(x, grid, truth) for x in value.args)
        return a & b if (value.op == "and") == truth else a | b
    if value.op in _COMPARE and all(a.expr is not None for a in value.args):
        left, right = (evaluate_index(a.expr, grid) for a in value.args if a.expr is not None)
        return np.asarray(_COMPARE[value.op](left, right) == truth)
    return np.ones((1,) * max(1, len(grid)), dtype=np.bool_)


def evaluate_index(index: sympy.Expr, grid: _Grid) -> NDArray[np.int64]:
    """An index expression on a grid of points."""
    if index.is_Symbol:
        return grid[index]
    if index.is_Integer:
        return np.full((1,) * max(1, len(grid)), int(index), dtype=np.int64)
    args = [evaluate_index(a, grid) for a in index.args]
    if isinstance(index, sympy.Add):
        return _fold(np.add, args)
    if isinstance(index, sympy.Mul):
        return _fold(np.multiply, args)
    operations = {
        expr.FloorDiv: np.floor_divide,
        expr.FloorMod: np.mod,
        expr.Minimum: np.minimum,
        expr.Maximum: np.maximum,
    }
    return np.asarray(operations[type(index)](*args), dtype=np.int64)


def _fold(operation: np.ufunc, args: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    *_, last = itertools.accumulate(args, operation)
    return np.asarray(last, dtype=np.int64)
