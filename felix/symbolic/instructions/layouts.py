"""Layouts and padded extents on the symbolic program: transform_block_layout, reindex,
pad_einsum.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import index_expr, inverse, ir
from felix.symbolic.instructions import loop_transforms, placement
from felix.symbolic.ir import Access, Block, Buffer, Iter, Loop, SymbolicProgram


@dataclasses.dataclass(frozen=True, slots=True)
class IndexMap:
    """A map of indices: `results` are expressions in `symbols`, one for each new index."""

    symbols: tuple[sympy.Symbol, ...]
    results: tuple[sympy.Expr, ...]

    @classmethod
    def of(cls, index_map: Any) -> IndexMap:
        """TVM's index map as expressions.

        Raises:
            UnsupportedSchedule: an operation that no rule is there for.
        """
        symbols = {
            variable: index_expr.iter_symbol(f"i{number}")
            for number, variable in enumerate(index_map.initial_indices)
        }
        results = [index_expr.load_index(each, symbols) for each in index_map.final_indices]
        return cls(tuple(symbols.values()), tuple(results))


def transform_block_layout(program: SymbolicProgram, block: Block, index_map: IndexMap) -> None:
    """sch.transform_block_layout: new iterators, and a loop for each, in place of the old ones.

    The block has a loop for each iterator, which it is bound to, in the order of the iterators.

    Args:
        index_map: the new iterators as functions of the old ones, a bijection.
    """
    old = zip(index_map.symbols, block.iters, strict=True)
    symbols = {symbol: it.symbol for symbol, it in old}
    results = [each.xreplace(symbols) for each in index_map.results]
    iters = [_iter_of(result, number, block) for number, result in enumerate(results)]
    mapping = _old_iterators(block, results, iters)
    loops = program.loops_of(block)
    holder, place = loop_transforms.place_of(program, loops[0])
    block.stores, block.inits = (
        tuple(store.substituted(mapping) for store in stores)
        for stores in (block.stores, block.inits)
    )
    block.iters = iters
    holder[place] = loop_transforms.bound_nest(block)


def _iter_of(result: sympy.Expr, number: int, block: Block) -> Iter:
    """The new iterator that has the values of an expression in one of the old ones."""
    sources = [it for it in block.iters if it.symbol in result.free_symbols]
    if len(sources) != 1 or not isinstance(sources[0].extent, int):
        raise UnsupportedSchedule(f"a block layout with the iterator {result}")
    (source,) = sources
    values = index_expr.evaluate(result, {source.symbol: np.arange(source.extent)})
    return Iter(index_expr.iter_symbol(f"v{number}"), int(values.max()) + 1, source.kind)


def _old_iterators(
    block: Block, results: list[sympy.Expr], iters: list[Iter]
) -> dict[sympy.Symbol, sympy.Expr]:
    """The old iterators as expressions in the new ones."""
    pairs = list(zip(results, iters, strict=True))
    mapping = {result: it.symbol for result, it in pairs if result.is_Symbol}
    rest = [it for it in block.iters if it.symbol not in mapping]
    computed = [(result, it) for result, it in pairs if not result.is_Symbol]
    if computed:
        mapping |= inverse.inverse(
            tuple((it.symbol, it.extent) for it in rest),
            tuple(result for result, _ in computed),
            tuple(it.symbol for _, it in computed),
            tuple((it.symbol, it.extent) for _, it in computed),
        )
    return mapping


def reindex_read(program: SymbolicProgram, block: Block, index: int) -> Block:
    """sch.reindex of a buffer that the block reads: a copy with an index for each iterator.

    The copy is made before the block, which reads it at its iterators alone, those that are in
    the indices of what it read.
    """
    source = placement.tvm_reads(block)[index]
    accesses = [access for access in block.reads if access.buffer is source]
    if len(accesses) != 1:
        raise UnsupportedSchedule("reindex of a buffer that is read at several indices")
    (access,) = accesses
    iters, read = _reindexed(program, block, access)
    block.stores = tuple(
        ir.Store(store.target, store.value.replaced(_moved(access, read)))
        for store in block.stores
    )
    copy = _copying(f"{read.buffer.name}_reindex", iters, access, read)
    program.body.insert(program.place_of(block), loop_transforms.bound_nest(copy))
    return copy


def reindex_write(program: SymbolicProgram, block: Block, index: int) -> Block:
    """sch.reindex of what the block writes: it writes a buffer with an index for each iterator
    that is in the indices of the result, and a copy of that to the result comes after it."""
    (target,) = block.writes[index : index + 1]
    iters, written = _reindexed(program, block, target)
    block.stores, block.inits = (
        tuple(ir.Store(written, store.value.replaced(_moved(target, written))) for store in stores)
        for stores in (block.stores, block.inits)
    )
    copy = _copying(written.buffer.name, iters, written, target)
    program.body.insert(program.place_of(block) + 1, loop_transforms.bound_nest(copy))
    return copy


def _reindexed(
    program: SymbolicProgram, block: Block, access: Access
) -> tuple[list[Iter], Access]:
    """The iterators in the indices of an access, and a new buffer at these iterators alone."""
    used = set().union(*(each.free_symbols for each in access.indices))
    iters = [it for it in block.iters if it.symbol in used]
    old = access.buffer
    made = program.like(old, f"{old.name}_reindex", tuple(it.extent for it in iters))
    return iters, Access(made, tuple(it.symbol for it in iters))


def _copying(name: str, iters: list[Iter], source: Access, target: Access) -> Block:
    """The block that stores what `source` has to where `target` is.

    It has spatial iterators v0, v1, ... in place of these.
    """
    fresh = [
        dataclasses.replace(it, symbol=index_expr.iter_symbol(f"v{number}"), kind="spatial")
        for number, it in enumerate(iters)
    ]
    names = {it.symbol: new.symbol for it, new in zip(iters, fresh, strict=True)}
    copy = ir.Store(target, ir.Value.load(source)).substituted(names)
    return Block(name, fresh, [], (copy,))


def _moved(old: Access, new: Access) -> Callable[[ir.Value], ir.Value | None]:
    """What loads `new` in place of `old`."""
    return lambda value: ir.Value.load(new) if value.access == old else None


def pad_einsum(program: SymbolicProgram, block: Block, padding: Sequence[int]) -> None:
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
    for it, binding in block.bound:
        if it.symbol in padded:
            (component,) = binding.terms
            component.extent = it.extent
    place = program.place_of(block)
    reads = [a for buffer in placement.tvm_reads(block) for a in block.reads if a.buffer is buffer]
    copies_in = [_copy_in(program, block, access, padded) for access in _padded(reads, padded)]
    copies_out = [_copy_out(program, block, a, padded) for a in _padded(block.writes, padded)]
    program.body[place : place + 1] = [*copies_in, program.body[place], *copies_out]


def _padded(accesses: Sequence[Access], padded: dict[sympy.Symbol, ir.Scalar]) -> list[Access]:
    for access in accesses:
        if not all(index.is_Symbol or index == 0 for index in access.indices):
            raise UnsupportedSchedule("pad_einsum of a block with a computed index")
    return [access for access in accesses if set(access.indices) & set(padded)]


def _padded_buffer(
    program: SymbolicProgram, access: Access, padded: dict[sympy.Symbol, ir.Scalar]
) -> Buffer:
    old = access.buffer
    shape = tuple(
        padded.get(index, extent) if index.is_Symbol else 1
        for index, extent in zip(access.indices, old.shape, strict=True)
    )
    return program.like(old, f"{old.name}_pad", shape)


def _copy_in(
    program: SymbolicProgram, block: Block, access: Access, padded: dict[sympy.Symbol, ir.Scalar]
) -> Loop | Block:
    """The nest that fills the padded buffer of an operand, which the block then reads."""
    old, new = access.buffer, _padded_buffer(program, access, padded)
    placement.redirect(block, old, new)
    iters = placement.iters_of(new)
    indices = tuple(it.symbol for it in iters)
    pairs = zip(iters, old.shape, strict=True)
    inside = [_less(it.symbol, extent) for it, extent in pairs if it.extent != extent]
    condition = functools.reduce(lambda a, b: ir.Value("and", False, (a, b)), inside)
    loaded = ir.Value.load(Access(old, indices))
    zero = ir.Value("const", old.is_float, expr=None if old.is_float else sympy.Integer(0))
    value = ir.Value("if", old.is_float, (condition, loaded, zero))
    return _copy(new, iters, new, value)


def _copy_out(
    program: SymbolicProgram, block: Block, access: Access, padded: dict[sympy.Symbol, ir.Scalar]
) -> Loop | Block:
    """The nest that copies the result out of the padded buffer that the block now writes."""
    old, new = access.buffer, _padded_buffer(program, access, padded)
    placement.redirect(block, old, new)
    iters = placement.iters_of(old)
    value = ir.Value.load(Access(new, tuple(it.symbol for it in iters)))
    return _copy(old, iters, new, value)


def _copy(target: Buffer, iters: list[Iter], padded: Buffer, value: ir.Value) -> Loop | Block:
    """The nest that stores a value of iterators, called after the padded buffer."""
    store = ir.Store(Access(target, tuple(it.symbol for it in iters)), value)
    return loop_transforms.bound_nest(Block(padded.name, iters, [], (store,)), "i")


def _less(symbol: sympy.Symbol, bound: ir.Scalar) -> ir.Value:
    limit = ir.Value("const", False, expr=sympy.Integer(bound))
    return ir.Value("lt", False, (ir.Value("iter", False, expr=symbol), limit))
