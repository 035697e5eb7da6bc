"""What Felix accepts as a program, checked before anything else touches it.

A program is written as TVM's JSON, read into a program made anew (`reader`), and proved to stay
inside its buffers (`bounds`). Everything outside that grammar is refused by name: opaque calls,
already bound or vectorised loops, pragmas, dynamic shapes, accesses outside a buffer, data that
choose where something is stored.

Names of a checked program are identifiers, for TVM writes those of buffers, variables and blocks
into CUDA source as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural

from felix import errors, names
from felix.tir import bounds, grammar, reader, windows

TVM_ERRORS = grammar.TVM_ERRORS
first_line = grammar.first_line


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
        clean = _proved(tvm.ir.save_json(windows.even(func)), clamp)
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
    all_blocks = list(grammar.blocks(func.body))
    buffers = [*func.params, *(buffer for block in all_blocks for buffer in block.alloc_buffers)]
    if any(grammar.dtype(buffer) in ("int64", "uint64") for buffer in buffers):
        return False
    sizes = [math.prod(grammar.shape(buffer)) for buffer in buffers]
    for block in all_blocks:
        for kind in {int(iter_var.iter_type) for iter_var in block.iter_vars}:
            sizes.append(
                math.prod(int(v.dom.extent) for v in block.iter_vars if int(v.iter_type) == kind)
            )
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
