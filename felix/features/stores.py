"""Stores of a symbolic program and the loops around each, as the features see them.

Notation
    e_l     extent of loop l; loops are numbered outermost first.
    p_l     1 if l runs in parallel tasks: the parallel loop of a CPU, blockIdx of a GPU.
    suffix  the loops inside a given one; they are what a footprint relaxes.

A thread axis bound twice around a store (a cooperative fetch inside a thread loop) is one loop:
the inner one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import sympy

from felix.errors import UnsupportedSchedule
from felix.features import addresses, iterators
from felix.symbolic import expr, ir, loaded, scalar, usage
from felix.symbolic.ir import Access, Affine, Block, IterComponent, Loop, Scalar, SymbolicProgram


class RowName(NamedTuple):
    """The store a row describes: label of the block, name of the buffer."""

    block: str
    buffer: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One store: its block, its loops (outermost first, each thread axis once), its kernel."""

    name: RowName
    block: Block
    store: ir.Store
    loops: tuple[Loop, ...]
    kernel: int
    is_init: bool

    @functools.cached_property
    def trip(self) -> Scalar:
        """Iterations over the launch."""
        return ir.product(lp.extent for lp in self.loops)

    @functools.cached_property
    def live(self) -> list[Scalar]:
        """Per loop, the condition that it alone has a second iteration that passes the guards."""
        several = [scalar.negated(scalar.equal(loop.extent, 1)) for loop in self.loops]
        passing = [addresses.passes(self.block, loop, 1) for loop in self.loops]
        return [expr.share(scalar.both(*pair)) for pair in zip(several, passing, strict=True)]

    @functools.cached_property
    def visited(self) -> dict[sympy.Symbol, iterators.Visited]:
        """What each iterator of the block takes over the launch."""
        block = self.block
        return {it.symbol: iterators.visit(b, block, it.extent) for it, b in block.bound}

    @functools.cached_property
    def accesses(self) -> list[tuple[ir.Buffer, list[Access], bool, bool]]:
        """(buffer, accesses, read, written) per buffer: destination first, then as loaded."""
        target = self.store.target
        slots: dict[int, tuple[ir.Buffer, list[Access], bool, bool]] = {
            id(target.buffer): (target.buffer, [target], False, True)
        }
        for access in self.store.value.loads():
            buffer, accesses, _, written = slots.get(
                id(access.buffer), (access.buffer, [], True, False)
            )
            if access not in accesses:
                accesses = [*accesses, access]
            slots[id(access.buffer)] = (buffer, accesses, True, written)
        return list(slots.values())


def rows(program: SymbolicProgram) -> list[Row]:
    """All stores in program order."""
    result = []
    tops: dict[int, int] = {}
    for loops, block in program.walk():
        top = id(loops[0]) if loops else id(block)
        kernel = tops.setdefault(top, len(tops))
        around = distinct_threads(loops)
        for store in block.inits:
            name = RowName(f"{block.label}_init", store.target.buffer.name)
            outside = [lp for lp in around if not usage.may_feed(lp.components, block)]
            result.append(Row(name, block, store, tuple(outside), kernel, True))
        for store in block.stores:
            name = RowName(block.label, store.target.buffer.name)
            result.append(Row(name, block, store, tuple(around), kernel, block.is_init))
    return result


def distinct_threads(loops: list[Loop]) -> list[Loop]:
    """The loops with each thread axis once, at its inner place."""
    distinct: list[Loop] = []
    for loop in loops:
        if loop.thread is not None:
            distinct = [lp for lp in distinct if lp.thread != loop.thread]
        distinct.append(loop)
    return distinct


def is_task(loop: Loop) -> Scalar:
    """p_l: the loop's iterations are separate tasks."""
    if loop.thread is not None:
        return int(loop.thread.startswith("blockIdx"))
    return 1 if loop.kind == "parallel" else loop.parallel


def is_vector(loop: Loop) -> Scalar:
    """Condition that the loop is (part of) the vectorized one."""
    return 1 if loop.kind == "vectorized" else loop.vector


# ---------------------------------------------------------------- footprints


def hull(
    access: Access,
    block: Block,
    extents: dict[IterComponent, Scalar],
    before: tuple[Collection[IterComponent], list[Scalar]] | None = None,
) -> list[Scalar]:
    """Index range per dimension while each component of `extents` runs over that many values.

    All other components stay at 0. Guards keep a guarded flat index below its bound. An index that
    depends on data has at most as many values as places it is loaded from.

    Args:
        before: (components, hull): the hull without those components; dimensions that do not
            depend on them are taken from it.
    """
    dims: Sequence[int] = range(len(access.indices))
    if before is not None:
        dims = addresses.moved_dims(access, block, before[0])
    used = {s for dim in dims for s in access.indices[dim].free_symbols}
    bindings = {it.symbol: binding for it, binding in block.bound if it.symbol in used}
    spans = {symbol: _span(binding, block, extents) for symbol, binding in bindings.items()}
    origin = {symbol: addresses.value_at(binding, {}) for symbol, binding in bindings.items()}
    result: list[Scalar] = [1] * len(access.indices) if before is None else list(before[1])
    for dim in dims:
        index, extent = access.indices[dim], access.buffer.shape[dim]
        if loaded.is_data(index):
            widths = [index_span(part, spans, origin) for part in loaded.positions(index)]
            result[dim] = scalar.minimum(extent, ir.product(widths))
        else:
            width = scalar.plain(index_span(index, spans, origin))
            result[dim] = scalar.minimum(extent, width) if _overhangs(index, block) else width
    return result


def _overhangs(index: sympy.Expr, block: Block) -> bool:
    """Whether a guard over several iterators of the index keeps it inside of its buffer."""
    used = [binding for it, binding in block.bound if it.symbol in index.free_symbols]
    return any(
        sum(any(comp in flat.terms for comp in binding.terms) for binding in used) > 1
        for flat, _ in block.guards
    )


def _span(affine: Affine, block: Block, extents: dict[IterComponent, Scalar]) -> Scalar:
    """Number of values between the least and the greatest of an affine form."""
    span: Scalar = 1
    terms = dict(affine.terms)
    for flat, bound in block.guards:
        inside = [comp for comp in flat.terms if comp in terms]
        if inside and len(inside) == len(flat.terms):
            width = _span(flat, _unguarded(block), extents)
            factor = scalar.plain(sympy.sympify(terms[inside[-1]]) / flat.terms[inside[-1]])
            span = span + factor * (scalar.minimum(width, bound) - 1)
            terms = {comp: c for comp, c in terms.items() if comp not in flat.terms}
    for component, coefficient in reversed(terms.items()):
        if component not in extents and component.source is None:
            continue
        span = scalar.spread(span, _component_span(component, block, extents), coefficient)
    return span


def _unguarded(block: Block) -> Block:
    return dataclasses.replace(block, guards=[])


def _component_span(
    component: IterComponent, block: Block, extents: dict[IterComponent, Scalar]
) -> Scalar:
    if component.source is None:
        return extents.get(component, 1)
    flat = component.source.flat
    reach = _span(
        _turning(component.source, component.extent, extents), _unguarded(block), extents
    )
    for guarded, bound in block.guards:
        if guarded is flat or guarded.terms == flat.terms:
            reach = scalar.minimum(reach, bound)
    return scalar.minimum(component.extent, scalar.ceil_div(reach, component.source.inner))


def _turning(source: ir.Source, extent: Scalar, extents: dict[IterComponent, Scalar]) -> Affine:
    """The flat index of a derived component without the terms that take it round whole periods.

    Where a term with coefficient 1 runs, the flat index has no gaps and its range says all.
    """
    running = {
        comp: c
        for comp, c in source.flat.terms.items()
        if comp.source is not None or comp in extents
    }
    if source.outermost or any(scalar.is_static(c, 1) for c in running.values()):
        return source.flat
    period = source.inner * extent
    stays = _stays(running, source.inner, extent, extents)
    terms = {
        comp: scalar.select(
            scalar.either(stays, scalar.equal(scalar.floor_mod(c, period), 0)), 0, c
        )
        for comp, c in source.flat.terms.items()
    }
    return Affine(terms, source.flat.constant)


def _stays(
    running: dict[IterComponent, Scalar],
    inner: Scalar,
    extent: Scalar,
    extents: dict[IterComponent, Scalar],
) -> Scalar:
    """Condition that floor(sum c x / inner) mod extent is 0 while every x runs from 0 below e.

    With c = q inner + r it is sum q x + floor(sum r x / inner). One step of one x alone adds q, so
    that each q is a multiple of the extent. One more step adds 0 or 1 to the floor, which
    therefore passes 1 unless it stays 0 to the end, where sum r (e - 1) < inner.
    """
    if any(comp.source is not None for comp in running):
        return 0
    result: Scalar = 1
    last: Scalar = 0
    for comp, c in running.items():
        whole = scalar.floor_mod(scalar.floor_div(c, inner), extent)
        result = scalar.both(result, scalar.equal(whole, 0))
        last = last + scalar.floor_mod(c, inner) * (extents[comp] - 1)
    return scalar.both(result, scalar.less(last, inner))


def index_span(
    index: sympy.Expr, spans: dict[sympy.Symbol, Scalar], origin: dict[sympy.Symbol, Scalar]
) -> Scalar:
    if index.is_Symbol:
        return spans[index]
    if not index.free_symbols & set(spans):
        return 1
    if isinstance(index, sympy.Add):
        total: Scalar = 1
        for arg in index.args:
            total = total + index_span(arg, spans, origin) - 1
        return total
    if isinstance(index, sympy.Mul):
        factors = [f for f in index.args if not f.free_symbols & set(spans)]
        rest = index / sympy.Mul(*factors)
        factor = scalar.plain(sympy.Mul(*factors))
        if isinstance(factor, int):
            factor = abs(factor)
        return factor * (index_span(rest, spans, origin) - 1) + 1
    if isinstance(index, (expr.FloorDiv, expr.FloorMod)):
        inner, divisor = index.args
        span = index_span(inner, spans, origin)
        start = scalar.plain(inner.xreplace({s: sympy.sympify(v) for s, v in origin.items()}))
        divisor = scalar.plain(divisor)
        if isinstance(index, expr.FloorDiv):
            last = scalar.floor_div(start + span - 1, divisor)
            return last - scalar.floor_div(start, divisor) + 1
        fits = scalar.less_equal(scalar.floor_mod(start, divisor) + span, divisor)
        return scalar.select(fits, span, divisor)
    if isinstance(index, (expr.Minimum, expr.Maximum, expr.Select)):
        chosen = index.args[-2:]  # at most as far apart as what is chosen from
        widths = [index_span(arg, spans, origin) for arg in chosen]
        return scalar.maximum(*widths)
    raise UnsupportedSchedule(f"the footprint of index {index} cannot be modelled")


def largest(hulls: list[list[Scalar]]) -> list[Scalar]:
    """Largest hull over several accesses to one buffer, per dimension."""
    result = hulls[0]
    for other in hulls[1:]:
        result = [scalar.maximum(a, b) for a, b in zip(result, other, strict=True)]
    return result
