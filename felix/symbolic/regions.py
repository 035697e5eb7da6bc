"""Regions of buffers that blocks touch, and the iteration domains compute_at derives from them.

A region dimension is an `Interval`: a minimum (affine in the components outside) and an extent.
All rules are those of TVM's ComputeAt (interval arithmetic over relaxed loops, one dimension at a
time).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Hashable, Sequence

import numpy as np
import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import expr, index_expr, ir, loaded, scalar
from felix.symbolic.ir import Affine, Block, Buffer, IterComponent, Loop, Scalar

#: Values of an index that are enumerated.
MAX_ENUMERATED = 1 << 22
#: Loops of these threads are relaxed for a buffer of that scope wherever they stand.
THREAD_RANK = {"vthread": 1, "threadIdx": 1, "blockIdx": 0}
SCOPE_RANK = {"global": 0, "shared": 1, "local": 3}


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """{minimum + t : 0 <= t < extent}.

    `dynamic` is the condition (0/1) that TVM finds no constant extent and gives up.
    """

    minimum: Affine
    extent: Scalar
    dynamic: Scalar = 0

    def anchored(self) -> Scalar:
        """Condition that the minimum is a constant for TVM: all components in it are unit."""
        result: Scalar = 1
        for component in self.minimum.terms:
            result = scalar.both(result, scalar.equal(component.extent, 1))
        return result


def index_affine(index: sympy.Expr, block: Block) -> Affine | None:
    """`index`, an expression in the block's iters, as an affine form of components, or None."""
    total = Affine({}, 0)
    bindings = {it.symbol: affine for it, affine in block.bound}
    for term in sympy.Add.make_args(index):
        factors = sympy.Mul.make_args(term)
        iters = [f for f in factors if f in bindings]
        rest = scalar.plain(sympy.Mul(*[f for f in factors if f not in bindings]))
        if len(iters) > 1 or (isinstance(rest, sympy.Expr) and rest.free_symbols & set(bindings)):
            return None
        total = total.plus(bindings[iters[0]].scaled(rest) if iters else Affine({}, rest))
    return total


def relax(
    affine: Affine, relaxed: set[IterComponent], guards: Sequence[tuple[Affine, Scalar]] = ()
) -> Interval:
    """Interval of `affine` while `relaxed` components run over their extents.

    A derived component counts as relaxed when all components of its source are. Components that a
    guard (flat < bound) governs together reach no farther than the bound.
    """
    minimum, extent = Affine({}, affine.constant), 1
    terms = dict(affine.terms)
    for flat, bound in guards:
        factor = _guarded(terms, flat, relaxed)
        if factor is not None:
            extent = extent + factor * (bound - 1)
            terms = {comp: c for comp, c in terms.items() if comp not in flat.terms}
    for component, coefficient in terms.items():
        if not is_relaxed(component, relaxed):
            minimum = minimum.plus(Affine({component: coefficient}))
        elif scalar.is_negative(coefficient):
            minimum = minimum.plus(Affine({}, (component.extent - 1) * coefficient))
    for component, coefficient in reversed(terms.items()):
        if is_relaxed(component, relaxed):
            extent = scalar.spread(extent, component.extent, coefficient)
    return Interval(minimum, extent)


def _guarded(
    terms: dict[IterComponent, Scalar], flat: Affine, relaxed: set[IterComponent]
) -> Scalar | None:
    """The factor by which the guarded flat index enters the terms, if it does as a whole."""
    factors = []
    for component, coefficient in flat.terms.items():
        if component not in terms or component not in relaxed:
            return None
        factors.append(terms[component] / sympy.sympify(coefficient))
    same = factors and all(expr.expanded(f - factors[0]) == 0 for f in factors)
    return scalar.plain(factors[0]) if same else None


def is_relaxed(component: IterComponent, relaxed: set[IterComponent]) -> bool:
    """True if the component runs over all its values while the `relaxed` components do."""
    if component in relaxed:
        return True
    return component.source is not None and all(
        is_relaxed(comp, relaxed) for comp in component.source.flat.terms
    )


def index_interval(index: sympy.Expr, block: Block, relaxed: set[IterComponent]) -> Interval:
    """Interval an index expression covers while `relaxed` components run."""
    affine = index_affine(index, block)
    if affine is not None:
        return relax(affine, relaxed, block.guards)
    if isinstance(index, (expr.FloorDiv, expr.FloorMod)) and index.args[1].is_Integer:
        inner = index_interval(index.args[0], block, relaxed)
        rule = _floordiv if isinstance(index, expr.FloorDiv) else _floormod
        return rule(inner, int(index.args[1]))
    if isinstance(index, sympy.Add):
        return _sum([index_interval(arg, block, relaxed) for arg in index.args])
    if isinstance(index, sympy.Mul) and index.args[0].is_Integer:
        factor = int(index.args[0])
        inner = index_interval(index / factor, block, relaxed)
        if factor > 0:
            width = (inner.extent - 1) * factor + 1
            return Interval(inner.minimum.scaled(factor), width, inner.dynamic)
    enumerated = _enumerated(index, block, relaxed)
    if enumerated is None:
        raise UnsupportedSchedule(
            f"the region of index {index} in block {block.name} cannot be modelled"
        )
    return enumerated


def _data_interval(
    index: sympy.Expr, extent: Scalar, block: Block, relaxed: set[IterComponent]
) -> Interval:
    """Of an index that depends on data: one value, or where a place that it is loaded from runs,
    all of the dimension.
    """
    used = index.free_symbols
    bindings = [b for it, b in block.bound if it.symbol in used]
    runs: Scalar = 0
    for binding in bindings:
        for component in binding.terms:
            if depends(component, relaxed):
                runs = scalar.either(runs, binding.mentions(component))
    if scalar.is_static(runs, 1):
        return Interval(Affine({}, 0), extent)
    flat = functools.reduce(Affine.plus, bindings, Affine({}, 0))
    value = _derived(flat, 1, extent)
    return Interval(Affine({value: 1}), scalar.select(runs, extent, 1))


def depends(component: IterComponent, on: Collection[IterComponent]) -> bool:
    """Whether the component is one of these, or has several values while they run."""
    if component in on:
        return True
    return component.source is not None and any(
        depends(comp, on) for comp in component.source.flat.terms
    )


def _enumerated(index: sympy.Expr, block: Block, relaxed: set[IterComponent]) -> Interval | None:
    """The interval of an index whose iterators all run over their whole domains."""
    used = [(it, b) for it, b in block.bound if it.symbol in index.free_symbols]
    runs = all(is_relaxed(component, relaxed) for _, b in used for component in b.terms)
    if not runs or not all(isinstance(it.extent, int) for it, _ in used):
        return None
    if math.prod(it.extent for it, _ in used) > MAX_ENUMERATED:
        return None
    axes = np.meshgrid(*(np.arange(it.extent) for it, _ in used), indexing="ij", sparse=True)
    values = index_expr.evaluate(
        index, {it.symbol: a for (it, _), a in zip(used, axes, strict=True)}
    )
    low, high = int(values.min()), int(values.max())
    return Interval(Affine({}, low), high - low + 1)


def _sum(parts: list[Interval]) -> Interval:
    minimum, extent, dynamic = Affine({}, 0), 1, 0
    for part in parts:
        minimum = minimum.plus(part.minimum)
        extent = extent + part.extent - 1
        dynamic = scalar.either(dynamic, part.dynamic)
    return Interval(minimum, extent, dynamic)


def _floordiv(inner: Interval, divisor: int) -> Interval:
    """floor(interval / divisor).

    The extent does not depend on the loops outside, as TVM needs, where the coefficients left in
    the minimum are multiples of the divisor, or where the interval is a single point.
    """
    clean: Scalar = 1
    for coefficient in inner.minimum.terms.values():
        clean = scalar.both(clean, scalar.equal(scalar.floor_mod(coefficient, divisor), 0))
    start = inner.minimum.constant
    extent = (
        scalar.floor_div(start + inner.extent - 1, divisor) - scalar.floor_div(start, divisor) + 1
    )
    single = scalar.equal(inner.extent, 1)
    extent = scalar.select(clean, extent, scalar.select(single, 1, extent))
    dynamic = scalar.either(inner.dynamic, scalar.negated(scalar.either(clean, single)))
    if scalar.is_static(clean, 1):
        terms = {comp: scalar.floor_div(c, divisor) for comp, c in inner.minimum.terms.items()}
        minimum = Affine(terms, scalar.floor_div(start, divisor))
    else:
        minimum = Affine({_derived(inner.minimum, divisor, None): 1})
    return Interval(minimum, extent, dynamic)


def _floormod(inner: Interval, divisor: int) -> Interval:
    """interval mod divisor: within one period it stays as long as it is, else it is everything."""
    extent = scalar.minimum(inner.extent, divisor)
    single = scalar.equal(inner.extent, 1)
    if scalar.is_static(single, 0) or not inner.minimum.terms:
        start = inner.minimum.constant
        fits = scalar.less_equal(scalar.floor_mod(start, divisor) + inner.extent, divisor)
        low = scalar.select(fits, scalar.floor_mod(start, divisor), 0)
        extent = scalar.select(fits, extent, divisor)
        return Interval(Affine({}, low), extent, inner.dynamic)
    return Interval(Affine({_derived(inner.minimum, 1, divisor): 1}), extent, inner.dynamic)


def _derived(flat: Affine, inner: int, modulus: int | None) -> IterComponent:
    """A component standing for (flat // inner), or flat % modulus."""
    reach = flat.constant + 1
    for component, coefficient in flat.terms.items():
        reach = reach + coefficient * (component.extent - 1)
    extent = scalar.ceil_div(reach, inner) if modulus is None else modulus
    return IterComponent("derived", extent, False, ir.Source(flat, inner, modulus is None, False))


def path_components(
    loops: list[Loop], below: Loop | None, scope: str | None
) -> set[IterComponent]:
    """Components relaxed for a block under `loops`: those inside `below`, plus threads by scope.

    Args:
        loops: enclosing loops, outermost first.
        below: loops strictly inside this one are relaxed; None relaxes all.
        scope: storage scope of the buffer; shared memory is seen by all threads of a block, so
            thread loops outside `below` are relaxed too. None: do not look at threads.
    """
    start = 0 if below is None else next(i for i, lp in enumerate(loops) if lp is below) + 1
    chosen = loops[start:]
    rank = SCOPE_RANK.get(scope.split(".")[0], 0) if scope else 0
    if rank > 0:
        chosen = chosen + [
            lp
            for lp in loops[:start]
            if lp.thread and rank <= THREAD_RANK[lp.thread.split(".")[0]]
        ]
    return {component for lp in chosen for component in lp.components}


def union(a: Interval, b: Interval, extent: Scalar) -> Interval:
    """Smallest interval over both, inside a dimension of `extent`; minima must be comparable."""
    dynamic = scalar.either(a.dynamic, b.dynamic)
    left, right = _keyed(a.minimum), _keyed(b.minimum)
    keys = set(left) | set(right)
    if any(not _equal(left.get(k, 0), right.get(k, 0)) for k in keys):
        for part in (a, b):
            if whole(part, extent):
                return part
        raise UnsupportedSchedule("two consumers need regions that cannot be compared")
    shift = b.minimum.constant - a.minimum.constant
    if not isinstance(shift, int):
        low = scalar.minimum(a.minimum.constant, b.minimum.constant)
        high = scalar.maximum(a.minimum.constant + a.extent, b.minimum.constant + b.extent)
        return Interval(Affine(a.minimum.terms, low), high - low, dynamic)
    first, second = (a, b) if shift >= 0 else (b, a)
    reach = scalar.maximum(first.extent, second.extent + abs(shift))
    return Interval(first.minimum, reach, dynamic)


def unions(
    a: Sequence[Interval], b: Sequence[Interval], shape: Sequence[Scalar]
) -> list[Interval]:
    """`union` of every dimension of a buffer of that shape."""
    return [union(x, y, extent) for x, y, extent in zip(a, b, shape, strict=True)]


def whole(interval: Interval, extent: Scalar) -> bool:
    """True if the interval visibly is all of [0, extent)."""
    start = interval.minimum
    return not start.terms and start.constant == 0 and _equal(interval.extent, extent)


def _equal(a: Scalar, b: Scalar) -> bool:
    return bool(a == b) or bool(expr.expanded(a - b) == 0)


def _keyed(affine: Affine) -> dict[Hashable, Scalar]:
    """Terms by the meaning of their component: derived components of equal formulas are equal.

    Components that are visibly 0 are left out.
    """
    return {
        component_key(comp): c
        for comp, c in affine.terms.items()
        if not scalar.is_static(comp.extent, 1)
    }


def component_key(component: IterComponent) -> Hashable:
    """Identity of a component: itself, or for a derived one its formula."""
    source = component.source
    if source is None:
        return id(component)
    flat = frozenset((k, str(c)) for k, c in _keyed(source.flat).items())
    modulus = None if source.outermost else str(component.extent)
    return (flat, str(source.flat.constant), str(source.inner), modulus)


def solve_domains(
    block: Block, provided: list[tuple[sympy.Expr, Interval, Scalar]]
) -> list[Interval]:
    """Domain of every iter of `block` so that it covers the required intervals.

    Args:
        provided: (index expression in the block's iters, interval required of it, extent of the
            buffer dimension) for every dimension of every buffer involved.
    """
    intervals: dict[sympy.Symbol, Interval] = {}
    for index, required, size in provided:
        if not index.free_symbols:
            continue
        symbol, interval = _solve(index, required)
        if interval is None:
            continue
        if symbol in intervals:
            interval = union(intervals[symbol], interval, size)
        intervals[symbol] = interval
    domains = []
    for it in block.iters:
        interval = intervals.get(it.symbol, Interval(Affine({}, 0), it.extent))
        domains.append(clip(interval, it.extent))
    return domains


def _solve(index: sympy.Expr, required: Interval) -> tuple[sympy.Symbol, Interval | None]:
    if index.is_Symbol:
        return index, required
    if isinstance(index, expr.FloorDiv) and index.args[0].is_Symbol:
        factor = int(index.args[1])
        scaled = required.minimum.scaled(factor)
        return index.args[0], Interval(scaled, required.extent * factor, required.dynamic)
    if isinstance(index, expr.FloorMod) and index.args[0].is_Symbol:
        return index.args[0], None
    raise UnsupportedSchedule(f"a block that provides index {index} cannot be computed at a loop")


def clip(interval: Interval, extent: Scalar) -> Interval:
    """TVM's rule: a constant interval is cut to [0, extent); any other is left as it is."""
    low, size = interval.minimum.constant, interval.extent
    if not interval.minimum.terms and scalar.is_static(size, 1):
        return interval
    inside = isinstance(low, int) and low >= 0 and within(interval, extent)
    if inside:
        return interval
    start = scalar.maximum(low, 0)
    clipped = scalar.minimum(low + size, extent) - start
    if isinstance(clipped, int) and isinstance(interval.anchored(), int):
        if not interval.anchored():
            return interval
        return Interval(Affine({}, start), clipped, interval.dynamic)
    anchored = interval.anchored()
    minimum = Affine(interval.minimum.terms, scalar.select(anchored, start, low))
    return Interval(minimum, scalar.select(anchored, clipped, size), interval.dynamic)


def within(interval: Interval, extent: Scalar) -> bool:
    """True if the interval visibly never passes `extent`, whatever the variables are.

    Components range over tilings of a domain already within bounds, so an interval whose farthest
    point over all components is inside stays inside for every decision.
    """
    farthest = interval.minimum.constant + interval.extent - 1
    for component, coefficient in interval.minimum.terms.items():
        farthest = farthest + coefficient * component.extent - coefficient
    difference = expr.expanded(extent - 1 - farthest)
    return bool(difference.is_number and difference >= 0)


def required_intervals(
    buffer: Buffer, block: Block, accesses: list[ir.Access], relaxed: set[IterComponent]
) -> list[Interval] | None:
    """Hull over the accesses of `block` to `buffer`, per dimension; None if it has none."""
    result: list[Interval] | None = None
    for access in accesses:
        if access.buffer is not buffer:
            continue
        intervals = [
            _data_interval(index, extent, block, relaxed)
            if loaded.is_data(index)
            else index_interval(index, block, relaxed)
            for index, extent in zip(access.indices, buffer.shape, strict=True)
        ]
        result = intervals if result is None else unions(result, intervals, buffer.shape)
    return result
