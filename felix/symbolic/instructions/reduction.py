"""Reductions on the symbolic program: rfactor, and moving `init` out of its reduction loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import index_expr, ir, scalar, usage
from felix.symbolic.instructions import loop_transforms
from felix.symbolic.ir import (
    Access,
    Affine,
    Block,
    Buffer,
    Iter,
    IterComponent,
    Loop,
    SymbolicProgram,
)


def rfactor(program: SymbolicProgram, loop: Loop, factor_axis: int) -> Block:
    """sch.rfactor: factor the reduction over `loop` into a block of its own.

    Returns the new block, which reduces the other loops into a buffer with one more dimension;
    the old block is left reducing that buffer over `loop`.
    """
    block = ir.blocks_under(loop)[0]
    loops = program.loops_of(block)
    rf_component = loop.components[0]
    if len(loop.components) != 1 or not block.inits:
        raise UnsupportedSchedule("rfactor over a fused loop")
    dimensions = len(block.writes[0].indices)
    axis = factor_axis if factor_axis >= 0 else dimensions + 1 + factor_axis
    buffers = [_factored(program, each.buffer, axis, rf_component) for each in block.writes]
    rf_block, copies = _rfactor_block(block, loops, rf_component, buffers, axis)
    rf_nest: Loop | Block = rf_block
    for lp in reversed(loops):
        rf_nest = Loop([copies[comp] for comp in lp.components], [rf_nest])
    place = program.place_of(block)
    _write_back(program, block, loops, loop, buffers, axis)
    program.body.insert(place, rf_nest)
    return rf_block


def _factored(program: SymbolicProgram, buffer: Buffer, axis: int, part: IterComponent) -> Buffer:
    """What a part of the reduction stores to instead of `buffer`."""
    shape = (*buffer.shape[:axis], part.extent, *buffer.shape[axis:])
    return program.like(buffer, f"{buffer.name}.rf", shape)


def _rfactor_block(
    block: Block, loops: list[Loop], rf_component: IterComponent, buffers: list[Buffer], axis: int
) -> tuple[Block, dict[IterComponent, IterComponent]]:
    copies = _copies(block, loops)
    first = index_expr.iter_symbol(f"v{rf_component.name}")
    iters = [Iter(first, rf_component.extent, "spatial")]
    bindings = [Affine({copies[rf_component]: 1})]
    by_component: dict[IterComponent, sympy.Symbol] = {rf_component: first}
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for it, binding in block.bound:
        used = _base_components(binding)
        if it.kind == "spatial" or rf_component not in used:
            iters.append(it)
            bindings.append(copied(binding, copies))
            continue
        for component in used:
            if component not in by_component:
                by_component[component] = index_expr.iter_symbol(f"v{component.name}")
                iters.append(Iter(by_component[component], component.extent, "reduce"))
                bindings.append(Affine({copies[component]: 1}))
        mapping[it.symbol] = _as_index(binding, by_component)
    targets = {
        old: _with_axis(old, buffer, axis, first)
        for old, buffer in zip(block.writes, buffers, strict=True)
    }
    accumulators = {ir.Value.load(old): ir.Value.load(new) for old, new in targets.items()}
    has_reduce = any(it.kind == "reduce" for it in iters)
    stores, inits = [], []
    for store, init in zip(block.stores, block.inits, strict=True):
        value = store.value if has_reduce else _combiner_right(store)
        value = value.replaced(accumulators.get).substituted(mapping)
        stores.append(ir.Store(targets[store.target], value))
        inits.append(ir.Store(targets[store.target], init.value))
    guards = [(copied(g, copies), bound) for g, bound in block.guards]
    name, starts = f"{block.name}_rf", tuple(inits) if has_reduce else ()
    notes = dict(block.annotations)
    return Block(name, iters, bindings, tuple(stores), starts, guards, notes), copies


def _copies(block: Block, loops: list[Loop]) -> dict[IterComponent, IterComponent]:
    """Copies of the loops' components, and of those derived from them in the block's bindings."""
    copies = {comp: comp.copy() for lp in loops for comp in lp.components}
    derived = {comp for b in block.bindings for comp in b.terms if comp.source is not None}
    copies |= {comp: comp.copy() for comp in derived}
    for component in derived:
        assert component.source is not None
        copies[component].source = dataclasses.replace(
            component.source, flat=copied(component.source.flat, copies)
        )
    return copies


def _base_components(affine: Affine) -> list[IterComponent]:
    """Components of real loops the expression depends on, through derived components."""
    result: dict[IterComponent, None] = {}
    for component in affine.terms:
        source = component.source
        inner = [component] if source is None else _base_components(source.flat)
        result.update(dict.fromkeys(inner))
    return list(result)


def copied(affine: Affine, copies: dict[IterComponent, IterComponent]) -> Affine:
    """The affine form over the copies of its components."""
    terms = {copies.get(comp, comp): c for comp, c in affine.terms.items()}
    dropped = frozenset(copies.get(comp, comp) for comp in affine.dropped_if_unit)
    return Affine(terms, affine.constant, dropped)


def _as_index(affine: Affine, symbols: dict[IterComponent, sympy.Symbol]) -> sympy.Expr:
    total = sympy.sympify(affine.constant)
    for component, coefficient in affine.terms.items():
        if component.source is not None:
            flat = _as_index(component.source.flat, symbols)
            term = scalar.floor_div(flat, sympy.sympify(component.source.inner))
            if not component.source.outermost:
                term = scalar.floor_mod(term, sympy.sympify(component.extent))
        else:
            term = symbols[component]
        total = total + term * coefficient
    return total


def _with_axis(access: Access, buffer: Buffer, axis: int, symbol: sympy.Symbol) -> Access:
    return Access(buffer, (*access.indices[:axis], symbol, *access.indices[axis:]))


def _combiner_right(store: ir.Store) -> ir.Value:
    """The right operand of acc (+) rhs, or of a choice between both: what one step adds."""
    operands = store.value.args[1:] if store.value.op == "select" else store.value.args
    if len(operands) == 2 and operands[0].access == store.target:
        return operands[1]
    raise UnsupportedSchedule("the reduction is not of the form acc = combine(acc, value)")


def _write_back(
    program: SymbolicProgram,
    block: Block,
    loops: list[Loop],
    rf_loop: Loop,
    buffers: list[Buffer],
    axis: int,
) -> None:
    """Rewrite the reduction block in place to reduce `buffers` over the rfactor loop only."""
    rf_component = rf_loop.components[0]
    reduced = [binding for it, binding in block.bound if it.kind == "reduce"]
    reduce_components = {comp for binding in reduced for comp in _base_components(binding)}
    spatial = [(it, b) for it, b in block.bound if it.kind == "spatial"]
    first = index_expr.iter_symbol(f"v{rf_component.name}")
    block.iters = [Iter(first, rf_component.extent, "reduce"), *[it for it, _ in spatial]]
    block.bindings = [Affine({rf_component: 1}), *[b for _, b in spatial]]
    block.guards = []
    parts = [
        ir.Value("load", store.value.is_float, access=_with_axis(store.target, each, axis, first))
        for store, each in zip(block.stores, buffers, strict=True)
    ]
    added = [_combiner_right(store) for store in block.stores]
    every = dict(zip(added, parts, strict=True))
    block.stores = tuple(  # two stores may add the same: each has its own part then
        ir.Store(store.target, store.value.replaced({**every, own: part}.get))
        for store, own, part in zip(block.stores, added, parts, strict=True)
    )
    remaining = [
        lp
        for lp in loops
        if lp is rf_loop or not any(comp in reduce_components for comp in lp.components)
    ]
    holder, place = loop_transforms.place_of(program, loops[0])
    node: Loop | Block = block
    for lp in reversed(remaining):
        lp.body = [node]
        node = lp
    holder[place] = node


def decompose_reductions(program: SymbolicProgram) -> None:
    """RewriteReductionBlock: move `init` of each reduction block out of its reduction loops."""
    for loops, block in list(program.walk()):
        if not block.inits or _reduced_over_threads(block, loops):
            continue
        loops = program.loops_of(block)
        for depth, loop in enumerate(loops):
            if not scalar.is_static(usage.is_data_parallel(loop), 1):
                _decompose(program, block, loops, depth)
                break


def _reduced_over_threads(block: Block, loops: Sequence[Loop]) -> bool:
    components = {
        comp for lp in loops if lp.thread and "vthread" not in lp.thread for comp in lp.components
    }
    return usage.may_feed(components, block)


def _decompose(program: SymbolicProgram, block: Block, loops: list[Loop], point: int) -> None:
    """Put the init, under copies of the spatial loops, before the loop at depth `point`."""
    pairs = [(it, b) for it, b in block.bound if it.kind == "spatial"]

    def moves(loop: Loop) -> bool:
        mentioned = (usage.mentions(b, comp) for _, b in pairs for comp in loop.components)
        return not all(scalar.is_static(condition, 0) for condition in mentioned)

    chosen = [lp for lp in loops[point:] if moves(lp)]
    dropped = {comp for lp in loops[point:] if lp not in chosen for comp in lp.components}
    copies = {comp: comp.copy("_init") for lp in chosen for comp in lp.components}
    _copy_sources([b for _, b in pairs] + [g for g, _ in block.guards], copies)
    bindings = [copied(b, copies) for _, b in pairs]
    guards = [
        (copied(g, copies), bound) for g, bound in block.guards if not (set(g.terms) & dropped)
    ]
    init_block = Block(
        f"{block.name}_init",
        [it for it, _ in pairs],
        bindings,
        block.inits,
        (),
        guards,
        dict(block.annotations),
        is_init=True,
        number=block.number,
    )
    block.name, block.inits = f"{block.name}_update", ()
    node: Loop | Block = init_block
    for lp in reversed(chosen):
        node = dataclasses.replace(
            lp,
            components=[copies[comp] for comp in lp.components],
            body=[node],
            annotations=dict(lp.annotations),
        )
    holder, place = loop_transforms.place_of(program, loops[point])
    holder.insert(place, node)


def _copy_sources(affines: list[Affine], copies: dict[IterComponent, IterComponent]) -> None:
    """Derived components over copied loops need copies of their own."""
    for affine in affines:
        for component in affine.terms:
            source = component.source
            if source is None or component in copies:
                continue
            if any(comp in copies for comp in source.flat.terms):
                flat = copied(source.flat, copies)
                copies[component] = component.copy(source=dataclasses.replace(source, flat=flat))
