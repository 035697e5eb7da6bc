"""How many distinct elements of a buffer a store touches over the whole launch.

The product, over groups of indices linked by iterators or conditions, of the distinct values of
each: counted by enumeration where the values of the iterators (`felix.features.iterators`) do not
depend on the tiling, by a formula where they are stripes, else bounded. Conditions such as
padding are counted with them.

Which elements a gather touches is not known before it runs. It counts as touching a new one with
each visit until all are touched that its other indices leave: min(table, visits).
"""

from __future__ import annotations

import functools

import numpy as np
import sympy

from felix.features import iterators, stores
from felix.symbolic import expr, ir, loaded, scalar
from felix.symbolic.ir import Access, Scalar

#: What each iterator of the block takes.
_Visited = dict[sympy.Symbol, iterators.Visited]


def elements(row: stores.Row, accesses: list[Access]) -> Scalar:
    """Distinct elements touched by the accesses (all to one buffer)."""
    visited = dict(row.visited)
    conditions = {access: _conditions(row.store.value, access) for access in accesses}
    joined = _joined(accesses, visited)
    if joined:
        conditions = {
            a.substituted(joined): [c.substituted(joined) for c in conditions[a]] for a in accesses
        }
        accesses = list(conditions)
    if len(accesses) == 1:
        count = _one(accesses[0], conditions[accesses[0]], visited)
        return _inside(count, accesses[0], row.block, visited)
    counts = [_one(a, conditions[a], visited) for a in accesses]
    return _several(accesses, conditions, visited, counts)


def _inside(count: Scalar, access: Access, block: ir.Block, visited: _Visited) -> Scalar:
    """The count without what guards over several iterators keep out.

    Such a guard (s * a + b < bound, of a tensor cut in uneven blocks) has `bound` points. It
    counts where the access tells all of them apart: by one index, or by one for each iterator.
    """
    for flat, bound in block.guards:
        linked = [
            it.symbol
            for it, binding in block.bound
            if binding.terms and binding.terms.keys() <= flat.terms.keys()
        ]
        points = ir.product(visited[symbol].length for symbol in linked)
        whole = [i for i in access.indices if i.free_symbols == set(linked)]
        apart = bool(whole) or set(linked) <= set(access.indices)
        known = isinstance(points, int) and isinstance(bound, int)
        if len(linked) > 1 and apart and known:
            count = scalar.plain(sympy.Rational(bound, points) * count)
    return count


def _joined(accesses: list[Access], visited: _Visited) -> dict[sympy.Expr, sympy.Symbol]:
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
            length = scalar.plain(expr.expanded(visited[outer].length * size))
            if pair[inner] == inner and expr.expanded(n - size) == 0 and isinstance(length, int):
                joined[total] = sympy.Dummy(integer=True, nonnegative=True)
                visited[joined[total]] = iterators.Visited(0, length, length)
                break
    return joined


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


def _compared(condition: ir.Value) -> set[sympy.Symbol]:
    """The iterators of the comparisons in a condition that do not depend on data."""
    symbols: set[sympy.Symbol] = set()
    for node in condition.walk():
        if iterators.is_of_iterators(node):
            symbols |= _symbols(node)
    return symbols


# ---------------------------------------------------------------- counting


def _one(access: Access, conditions: list[ir.Value], visited: _Visited) -> Scalar:
    """Distinct index tuples of one access: a product over groups of linked dimensions."""
    if any(map(loaded.is_data, access.indices)):
        return _gathered(access, visited)
    tests = _conjuncts(conditions)
    total: Scalar = 1
    for indices, symbols in _groups(access, tests, visited):
        linked_tests = [t for t in tests if _symbols(t) & symbols]
        total = total * _group(indices, symbols, linked_tests, visited)
    return total


def _gathered(access: Access, visited: _Visited) -> Scalar:
    """min(table, visits) of an access with indices that depend on data."""
    plain = tuple(index for index in access.indices if not loaded.is_data(index))
    pairs = zip(access.indices, access.buffer.shape, strict=True)
    extents = [extent for index, extent in pairs if loaded.is_data(index)]
    rest = _one(Access(access.buffer, plain), [], visited)
    used = set().union(*(index.free_symbols for index in access.indices)) & set(visited)
    visits = ir.product(visited[s].count for s in sorted(used, key=str))
    return scalar.minimum(ir.product([rest, *extents]), visits)


def _groups(
    access: Access, tests: list[ir.Value], visited: _Visited
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
    indices: list[sympy.Expr], symbols: set[sympy.Symbol], tests: list[ir.Value], visited: _Visited
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
        if points <= iterators.POINTS_LIMIT:
            ordered = sorted(symbols, key=str)
            return iterators.n_touched([(indices, tests)], ordered, visited)
    return _estimate(indices, symbols, visited)


def _striped(
    index: sympy.Expr, symbol: sympy.Symbol, tests: list[ir.Value], visited: _Visited
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
        keep = keep & iterators.can_hold(test, grid)
    low, high = int(keep.argmax()), values.length - int(keep[::-1].argmax())
    if not keep[low:high].all() or not keep.any():
        return None
    n, c = values.stripe
    below = [
        n * scalar.floor_div(x, c) + scalar.minimum(scalar.floor_mod(x, c), n) for x in (low, high)
    ]
    return scalar.select(scalar.less_equal(c, n), high - low, below[1] - below[0])


def _estimate(indices: list[sympy.Expr], symbols: set[sympy.Symbol], visited: _Visited) -> Scalar:
    """Where tiles leave gaps, or there are too many points: at most one element a visit."""
    visits = ir.product(visited[s].count for s in symbols)
    spans = {s: visited[s].length for s in symbols}
    origin = {s: visited[s].start for s in symbols}
    box = ir.product(stores.index_span(i, spans, origin) for i in indices)
    return scalar.minimum(visits, box)


def _several(
    accesses: list[Access],
    conditions: dict[Access, list[ir.Value]],
    visited: _Visited,
    counts: list[Scalar],
) -> Scalar:
    """Union over several accesses: enumerated where possible, else their sum."""
    if any(loaded.is_data(index) for a in accesses for index in a.indices):
        total = sum(counts[1:], start=counts[0])
        return scalar.minimum(ir.product(accesses[0].buffer.shape), total)
    symbols = sorted(visited, key=str)
    chosen_by = set().union(*(_compared(c) for a in accesses for c in conditions[a]))
    used = [
        s
        for s in symbols
        if s in chosen_by or any(s in i.free_symbols for a in accesses for i in a.indices)
    ]
    points = ir.product(visited[s].length for s in used)
    if not all(visited[s].dense for s in used) or points > iterators.POINTS_LIMIT:
        return sum(counts[1:], start=counts[0])
    return iterators.n_touched([(a.indices, conditions[a]) for a in accesses], used, visited)
