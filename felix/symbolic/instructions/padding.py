"""Padded extents on the symbolic program: pad_einsum."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir
from felix.symbolic.indices import index_expr
from felix.symbolic.instructions import caching, loop_transforms
from felix.symbolic.ir import Access, Affine, Block, Buffer, Iter, IterComponent, Loop, Program


def pad_einsum(program: Program, block: Block, padding: Sequence[int]) -> None:
    """sch.pad_einsum: round the extents of the block's iterators up to multiples.

    Operands with a padded index are copied into padded buffers, zero outside, before the block;
    its result is copied out of one after it.

    Args:
        padding: a multiple for each iterator.
    """
    before = {it.symbol: it.extent for it in block.iters}
    block.iters = [
        dataclasses.replace(it, extent=-(-it.extent // multiple) * multiple)
        for it, multiple in zip(block.iters, padding, strict=True)
    ]
    padded = {it.symbol: it.extent for it in block.iters if it.extent != before[it.symbol]}
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.symbol in padded:
            (component,) = binding.terms
            component.extent = it.extent
    loops = program.loops_of(block)
    top: Loop | Block = loops[0] if loops else block
    place = next(i for i, node in enumerate(program.body) if node is top)
    reads = [a for buffer in caching.tvm_reads(block) for a in block.reads if a.buffer is buffer]
    copies_in = [_copy_in(program, block, access, padded) for access in _padded(reads, padded)]
    copies_out = [_copy_out(program, block, a, padded) for a in _padded(block.writes, padded)]
    program.body[place : place + 1] = [*copies_in, top, *copies_out]


def _padded(accesses: Sequence[Access], padded: dict[sympy.Symbol, ir.Scalar]) -> list[Access]:
    for access in accesses:
        if not all(index.is_Symbol or index == 0 for index in access.indices):
            raise UnsupportedSchedule("pad_einsum of a block with a computed index")
    return [access for access in accesses if set(access.indices) & set(padded)]


def _padded_buffer(
    program: Program, access: Access, padded: dict[sympy.Symbol, ir.Scalar]
) -> Buffer:
    old = access.buffer
    shape = tuple(
        padded.get(index, extent) if index.is_Symbol else 1
        for index, extent in zip(access.indices, old.shape, strict=True)
    )
    buffer = Buffer(f"{old.name}_pad", shape, old.dtype, old.dtype_bytes, old.scope)
    program.buffers.append(buffer)
    return buffer


def _copy_in(
    program: Program, block: Block, access: Access, padded: dict[sympy.Symbol, ir.Scalar]
) -> Loop | Block:
    """The nest that fills the padded buffer of an operand, which the block then reads."""
    old, new = access.buffer, _padded_buffer(program, access, padded)
    caching.redirect(block, old, new)
    iters = _iters(new)
    indices = tuple(it.symbol for it in iters)
    is_float = old.dtype.startswith(("float", "bfloat"))
    inside = [
        _less(it.symbol, extent)
        for it, extent in zip(iters, old.shape, strict=True)
        if it.extent != extent
    ]
    condition = functools.reduce(lambda a, b: ir.Value("and", False, (a, b)), inside)
    loaded = ir.Value("load", is_float, access=Access(old, indices))
    zero = ir.Value("const", is_float, expr=None if is_float else sympy.Integer(0))
    value = ir.Value("if", is_float, (condition, loaded, zero))
    return _nest(new.name, iters, ir.Store(Access(new, indices), value))


def _copy_out(
    program: Program, block: Block, access: Access, padded: dict[sympy.Symbol, ir.Scalar]
) -> Loop | Block:
    """The nest that copies the result out of the padded buffer that the block now writes."""
    old, new = access.buffer, _padded_buffer(program, access, padded)
    caching.redirect(block, old, new)
    iters = _iters(old)
    indices = tuple(it.symbol for it in iters)
    is_float = old.dtype.startswith(("float", "bfloat"))
    loaded = ir.Value("load", is_float, access=Access(new, indices))
    return _nest(new.name, iters, ir.Store(Access(old, indices), loaded))


def _iters(buffer: Buffer) -> list[Iter]:
    return [
        Iter(index_expr.iter_symbol(f"v{i}"), extent, "spatial")
        for i, extent in enumerate(buffer.shape)
    ]


def _less(symbol: sympy.Symbol, bound: ir.Scalar) -> ir.Value:
    limit = ir.Value("const", False, expr=sympy.Integer(bound))
    return ir.Value("lt", False, (ir.Value("iter", False, expr=symbol), limit))


def _nest(name: str, iters: list[Iter], store: ir.Store) -> Loop | Block:
    components = [IterComponent(f"i{i}", it.extent) for i, it in enumerate(iters)]
    bindings = [Affine({component: 1}) for component in components]
    block = Block(name, iters, bindings, (store,))
    return loop_transforms.nest(components, block)
