"""Windows of uneven size, as uneven adaptive pooling has them, made windows of one size.

TVM writes such a reduction as a block around loops whose extents depend on the block's iterators,
and no schedule rule looks inside. Here it becomes one block over the largest window, whose terms
outside of the window are the value that the reduction begins with: 0 of a sum, the least of a
maximum. Everything else stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import stmt as s_stmt

from felix.tir import grammar

#: Sizes of windows that are looked at to find the largest.
_MAX_WINDOWS = 4096
#: Reductions to which a term can add what they begin with.
_COMBINERS = (tirx.Add, tirx.Max, tirx.Min)


def even(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with reductions over uneven windows made even; itself if it has none."""
    root = func.body
    if not isinstance(root, s_stmt.SBlockRealize):
        return func
    statements = _items(root.block.body)
    changed = [_even(statement) for statement in statements]
    if all(new is old for new, old in zip(changed, statements, strict=True)):
        return func
    block = root.block
    body = tirx.SeqStmt(changed) if len(changed) > 1 else changed[0]
    made = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        annotations=block.annotations,
    )
    return func.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, made))


def _items(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _nest(statement: Any) -> tuple[list[Any], Any]:
    """The loops of a nest, and what is inside of them."""
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def _even(statement: Any) -> Any:
    """A statement of the root block, with windows of one size if it is such a reduction."""
    outer_loops, outer = _nest(statement)
    if not isinstance(outer, s_stmt.SBlockRealize) or outer.block.init is not None:
        return statement
    loops, inner = _nest(outer.block.body)
    if not loops or not isinstance(inner, s_stmt.SBlockRealize) or inner.block.init is None:
        return statement
    uneven = any(not isinstance(loop.extent, tirx.IntImm) for loop in loops)
    if not uneven or not isinstance(inner.block.body, tirx.BufferStore):
        return statement
    return _made_even(outer_loops, outer, loops, inner) or statement


def _made_even(
    outer_loops: Sequence[Any], outer: Any, loops: Sequence[Any], inner: Any
) -> Any | None:
    """The reduction over the largest window; None if it has another form."""
    domains = {v.var: v.dom.extent for v in outer.block.iter_vars}
    sizes = [_largest(loop.extent, domains) for loop in loops]
    if None in sizes or not _is_plain(outer_loops, outer, loops, inner):
        return None
    reductions = [
        tirx.IterVar(
            tvm.ir.Range(0, tirx.IntImm(loop.loop_var.ty.dtype, size)),
            tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype),
            tirx.IterVar.CommReduce,
        )
        for loop, size in zip(loops, sizes, strict=True)
    ]
    block = _even_block(outer.block, loops, inner, reductions)
    variables = [tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype) for loop in loops]
    made: Any = s_tir.SBlockRealize([*outer.iter_values, *variables], True, block)
    for variable, reduction in reversed(list(zip(variables, reductions, strict=True))):
        made = tirx.For(variable, 0, reduction.dom.extent, tirx.ForKind.SERIAL, made)
    for loop in reversed(outer_loops):
        made = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, made)
    return made


def _is_plain(outer_loops: Sequence[Any], outer: Any, loops: Sequence[Any], inner: Any) -> bool:
    """Whether one store accumulates terms, in serial loops from 0 and without predicates."""
    store, init = inner.block.body, inner.block.init
    serial = all(
        loop.kind == tirx.ForKind.SERIAL and grammar.is_constant(loop.min, 0)
        for loop in (*outer_loops, *loops)
    )
    predicates = all(grammar.is_constant(realize.predicate, 1) for realize in (outer, inner))
    if not (serial and predicates and isinstance(init, tirx.BufferStore)):
        return False
    if type(store.value) not in _COMBINERS or not isinstance(store.value.a, TensorLoad):
        return False
    pairs = zip(store.value.a.indices, store.indices, strict=True)
    same = store.value.a.source.same_as(store.buffer) and init.buffer.same_as(store.buffer)
    return same and all(tvm_ffi.structural_equal(*pair) for pair in pairs)


def _even_block(
    outer: Any, loops: Sequence[Any], inner: Any, reductions: Sequence[Any]
) -> s_tir.SBlock:
    """One block for both, whose terms outside of a window are what the reduction begins with."""
    store, init = inner.block.body, inner.block.init
    of_loops = {lp.loop_var: v.var for lp, v in zip(loops, reductions, strict=True)}
    values = {
        v.var: grammar.substituted(value, of_loops)
        for v, value in zip(inner.block.iter_vars, inner.iter_values, strict=True)
    }
    term = grammar.substituted(store.value.b, values)
    inside = [tirx.LT(of_loops[lp.loop_var], lp.extent) for lp in loops]
    for load in grammar.nodes(term, TensorLoad):
        inside += _in_bounds(load, of_loops)
    guarded = tirx.if_then_else(functools.reduce(tirx.And, inside), term, init.value)
    indices = [grammar.substituted(index, values) for index in store.indices]
    target = tirx.BufferLoad(store.buffer, indices)
    body = tirx.BufferStore(store.buffer, type(store.value)(target, guarded), indices)
    first = tirx.BufferStore(store.buffer, init.value, indices)
    return s_tir.SBlock(
        [*outer.iter_vars, *reductions],
        [],
        [],
        inner.block.name_hint,
        body,
        first,
        [],
        annotations=inner.block.annotations,
    )


def _largest(extent: Any, domains: Mapping[Any, Any]) -> int | None:
    """The largest value of an extent over all values of the variables in it."""
    variables = list(dict.fromkeys(grammar.nodes(extent, tirx.Var)))
    if len(variables) > 1 or any(v not in domains for v in variables):
        return None
    if not variables:
        return int(extent) if isinstance(extent, tirx.IntImm) else None
    domain = domains[variables[0]]
    if not isinstance(domain, tirx.IntImm) or int(domain) > _MAX_WINDOWS:
        return None
    analyzer = sym.Analyzer()
    dtype = variables[0].ty.dtype
    points = [{variables[0]: tirx.IntImm(dtype, value)} for value in range(int(domain))]
    values = [analyzer.simplify(grammar.substituted(extent, point)) for point in points]
    known = all(isinstance(value, tirx.IntImm) for value in values)
    return max(int(value) for value in values) if known else None


def _in_bounds(load: Any, of_loops: Mapping[Any, Any]) -> Iterator[Any]:
    """That indices of a window are below their extents, as they are inside of it."""
    variables = set(of_loops.values())
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        if not variables.isdisjoint(grammar.nodes(index, tirx.Var)):
            yield tirx.LT(index, extent)
