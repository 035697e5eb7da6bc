"""What Felix accepts as a program, checked before anything else touches it.

A program is written as TVM's JSON, read into a program made anew (`reader`), and proved to stay
inside its buffers (`bounds`). Everything outside that grammar is refused by name: opaque calls,
already bound or vectorised loops, pragmas, dynamic shapes, accesses outside a buffer, data that
choose where something is stored.

Names of a checked program are identifiers, for TVM writes those of buffers, variables and blocks
into CUDA source as they are.

Windows of uneven size, as uneven adaptive pooling has them, made windows of one size.

TVM writes such a reduction as a block around loops whose extents depend on the block's iterators,
and no schedule rule looks inside. Here it becomes one block over the largest window, whose terms
outside of the window are the value that the reduction begins with: 0 of a sum, the least of a
maximum. Everything else stays as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import stmt as s_stmt
from tvm_ffi import structural

from felix import errors, names
from felix.tir import bounds, grammar, reader


def normalise(func: tirx.PrimFunc, *, clamp: bool = False, narrow: bool = True) -> tirx.PrimFunc:
    """A checked copy of `func` named main, with int32 indices where they cannot overflow.

    Windows of uneven size become windows of one size (`windows`).

    Args:
        clamp: move indices of loads that depend on data into their buffers where they are not
            proved to lie there; the result of a program whose indices are legal stays the same.
        narrow: whether indices become int32; else they stay what they are.

    Raises:
        WorkloadError: outside the grammar of `reader`, or not proved by `bounds`.
    """
    if not isinstance(func, tirx.PrimFunc):
        raise errors.WorkloadError(f"a task needs a TIR PrimFunc, got {type(func).__name__}")
    try:
        clean = _proved(tvm.ir.save_json(even(func)), clamp)
        grammar.check(
            s_tir.analysis.verify_well_formed(clean, assert_mode=False),
            "the program is not well-formed TIR",
        )
        mod = tvm.IRModule({"main": clean})
        s_tir.Schedule(mod)
        return _narrowed(mod) if narrow and _narrow_is_safe(clean) else clean
    except errors.WorkloadError:
        raise
    except grammar.TVM_ERRORS as error:
        raise errors.WorkloadError(
            f"TVM rejects the program: {grammar.first_line(error)}"
        ) from error


def _proved(text: str, clamp: bool) -> tirx.PrimFunc:
    """The program of TVM's JSON, read and proved, as it is or with clamped indices."""
    clean = reader.read(text).with_attr("global_symbol", "main")
    try:
        bounds.prove(clean)
    except bounds.UnguardedData:
        if not clamp:
            raise
        clean = reader.read(text, clamp=True).with_attr("global_symbol", "main")
        bounds.prove(clean)
    return clean


def _narrow_is_safe(func: tirx.PrimFunc) -> bool:
    """Whether no index, offset or fused loop can reach 2^31, and no data is 64-bit integer."""
    buffers = grammar.buffers(func)
    if any(grammar.dtype(buffer) in ("int64", "uint64") for buffer in buffers):
        return False
    sizes = [math.prod(grammar.shape(buffer)) for buffer in buffers]
    for block in grammar.blocks(func.body):
        sizes += [grammar.extent(block, kind) for kind in (grammar.SPATIAL, grammar.REDUCE)]
    return max(sizes) <= bounds.NARROW_LIMIT


def _narrowed(mod: tvm.IRModule) -> tirx.PrimFunc:
    """The function with int32 indices, or as it is where 32 bits are not proved to be enough."""
    try:
        narrow = _of_one_type(tirx.transform.ForceNarrowIndexToInt32()(mod)["main"])
        bounds.prove(narrow)
    except (errors.WorkloadError, tvm.error.InternalError):
        return mod["main"]
    return narrow


def _of_one_type(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the variables of its blocks as narrow as their extents.

    `ForceNarrowIndexToInt32` leaves those wide that no index has, like the axes of a convolution's
    window of one cell.
    """
    narrow: dict[Any, Any] = {}

    def iterator(each: tirx.IterVar) -> tirx.IterVar:
        dtype = each.dom.extent.ty.dtype
        if each.var.ty.dtype == dtype:
            return each
        variable = tirx.Var(each.var.name, dtype)
        narrow[each.var] = variable.astype(each.var.ty.dtype)
        return tirx.IterVar(each.dom, variable, each.iter_type, each.thread_tag)

    body = structural.structural_map(func.body, (tirx.IterVar, iterator))
    if not narrow:
        return func
    return func.with_body(
        structural.structural_map(body, (tirx.Var, lambda each: narrow.get(each, each)))
    )


def check_names(func: tirx.PrimFunc) -> None:
    """Refuse names that are no identifiers, in a function that `validate.normalise` returned.

    Raises:
        WorkloadError: a name is none; the message says which.
    """
    for kind, name in _names(func):
        if not names.is_identifier(name):
            raise errors.WorkloadError(
                f"the program has the {kind} {names.quoted(name)}; a name has letters, digits, "
                f"'_' and '.', begins with no digit and has {names.MAX_CHARACTERS} characters "
                "at most"
            )


def _names(func: tirx.PrimFunc) -> Iterator[tuple[str, str]]:
    for parameter in func.params:
        yield "buffer", str(parameter.name)
    yield from _names_in(func.body)


def _names_in(stmt: Any) -> Iterator[tuple[str, str]]:
    for each in grammar.statements(stmt):
        match type(each).__name__:
            case "SBlockRealize":
                block = each.block
                yield "block", str(block.name_hint)
                yield from (("variable", str(item.var.name)) for item in block.iter_vars)
                yield from (("buffer", str(buffer.name)) for buffer in block.alloc_buffers)
                if block.init is not None:
                    yield from _names_in(block.init)
                yield from _names_in(block.body)
            case "For":
                yield "variable", str(each.loop_var.name)
            case "Bind":
                yield "variable", str(each.var.name)


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
    body = tirx.SeqStmt(changed) if len(changed) > 1 else changed[0]
    made = grammar.changed(root.block, body=body)
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
