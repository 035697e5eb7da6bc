"""Inlining on the symbolic program: compute_inline, reverse_compute_inline."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import inverse, ir, loaded, regions, scalar
from felix.symbolic.instructions import placement
from felix.symbolic.ir import Access, Block, SymbolicProgram


def compute_inline(program: SymbolicProgram, block: Block) -> None:
    """sch.compute_inline: substitute the block's value into its consumers."""
    target = block.store.target
    if block.inits:
        raise UnsupportedSchedule(f"a reduction cannot be inlined: {block.name}")
    if target.buffer.is_parameter or _has_other_writer(program, block):
        raise UnsupportedSchedule(f"what {block.name} stores is not its own, to be inlined")
    for _, consumer in program.walk():
        if placement.consumes(consumer, block):
            consumer.stores = tuple(
                ir.Store(store.target, _inlined(store.value, target, block.store.value))
                for store in consumer.stores
            )
    placement.remove(program, block)
    program.discard(target.buffer)


def _has_other_writer(program: SymbolicProgram, block: Block) -> bool:
    """Whether another block stores to the buffer of a block, a part of it each."""
    buffer = block.store.target.buffer
    return any(
        store.target.buffer is buffer
        for _, other in program.walk()
        if other is not block
        for store in other.stores
    )


def _inlined(value: ir.Value, target: Access, body: ir.Value) -> ir.Value:
    """The value with `body` for every load of what the target stores, in indices, too."""

    def at(indices: tuple[sympy.Expr, ...]) -> ir.Value:
        return body.substituted(_formal_to_actual(target, indices))

    def of_index(index: sympy.Expr) -> sympy.Expr:
        return loaded.replaced(index, target.buffer, lambda indices: _as_index(at(indices)))

    return value.mapped(of_index).replaced(
        lambda v: at(v.access.indices) if v.access and v.access.buffer is target.buffer else None
    )


def _formal_to_actual(
    target: Access, indices: tuple[sympy.Expr, ...]
) -> dict[sympy.Symbol, sympy.Expr]:
    mapping = {}
    for formal, actual in zip(target.indices, indices, strict=True):
        if formal.is_Symbol:
            mapping[formal] = actual
        elif formal != actual:
            raise UnsupportedSchedule("inlining a block that stores at a computed index")
    return mapping


def _as_index(value: ir.Value) -> sympy.Expr:
    """What an inlined block computes as an index of its consumer."""
    if value.access is not None:
        return loaded.element(value.access.buffer, value.access.indices)
    if value.expr is not None:
        return value.expr
    operands = [_as_index(operand) for operand in value.args]
    return operands[0] if value.op == "cast" else loaded.operation(value.op, *operands)


def reverse_compute_inline(program: SymbolicProgram, block: Block) -> None:
    """sch.reverse_compute_inline: append the block's computation to its only producer."""
    producers = [b for _, b in program.walk() if placement.consumes(block, b)]
    if len(producers) != 1:
        raise UnsupportedSchedule("reverse_compute_inline needs one producer in the program")
    producer = producers[0]
    if sum(placement.consumes(b, producer) for _, b in program.walk()) != 1:
        raise UnsupportedSchedule("reverse inlining into a block that others read")
    stored = producer.store.target
    loads = [a for a in block.reads if a.buffer is stored.buffer]
    chosen = [e for a in block.reads for index in a.indices for e in loaded.elements(index)]
    if any(buffer is stored.buffer for buffer, _ in chosen):
        raise UnsupportedSchedule("reverse inlining a block that takes indices from its producer")
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for access in loads:
        mapping |= _iterators_of(block, access, producer)
    for it in block.iters:
        if it.symbol not in mapping:
            if not scalar.is_static(it.extent, 1):
                raise UnsupportedSchedule("reverse inlining a block with an iterator of its own")
            mapping[it.symbol] = sympy.Integer(0)
    store = block.store.substituted(mapping)
    value = store.value.replaced(
        lambda v: producer.store.value if v.access and v.access.buffer is stored.buffer else None
    )
    producer.stores = (ir.Store(store.target, value),)
    placement.remove(program, block)
    program.discard(stored.buffer)
    producer.guards += _guards(block, producer, mapping)


def _guards(
    block: Block, producer: Block, mapping: Mapping[sympy.Symbol, sympy.Expr]
) -> list[tuple[ir.Affine, ir.Scalar]]:
    """What keeps a padded producer inside of the inlined block's domain."""
    farthest = {it.symbol: it.extent - 1 for it in producer.iters}
    guards = []
    for it in block.iters:
        index = mapping[it.symbol]
        affine = regions.index_affine(index, producer)
        if affine is None:
            continue
        reach = scalar.plain(index.xreplace(farthest)) + 1
        if not scalar.is_static(reach, it.extent):
            guards.append((affine, it.extent))
    return guards


def _iterators_of(
    block: Block, access: Access, producer: Block
) -> Mapping[sympy.Symbol, sympy.Expr]:
    """The iterators with which `block` reads what one iteration of its producer stores."""
    stored = producer.store.target.indices
    plain = [
        formal.is_Symbol or formal in (actual, 0)
        for formal, actual in zip(access.indices, stored, strict=True)
    ]
    if all(plain):
        pairs = zip(access.indices, stored, strict=True)
        return {formal: actual for formal, actual in pairs if formal.is_Symbol}
    domains = [tuple((it.symbol, it.extent) for it in b.iters) for b in (block, producer)]
    if not all(isinstance(extent, int) for domain in domains for _, extent in domain):
        raise UnsupportedSchedule("reverse inlining through a computed index of tiles")
    return inverse.inverse(domains[0], access.indices, stored, domains[1])
