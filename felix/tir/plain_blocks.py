"""The blocks of a program that tensors as a whole can follow: one statement a block, in order.

Such a block stores one element at each point of its domain, visits each point once, in loops of
its own, and its result does not depend on the order of points: of the buffer that it stores to, it
loads the element that it stores and no other. That may be an argument's old value, which the
program changes in place.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm_ffi import structural

from felix.tir import grammar

REDUCTION = 2  #: type of an iterator


def of(func: tirx.PrimFunc) -> list[Any] | None:
    """The blocks that compute, in program order; None if one is not plain."""
    realizes = _realizes(func.body, ())
    if realizes is None or not all(_is_plain(realize.block) for realize in realizes):
        return None
    return [realize.block for realize in realizes]


def start(block: Any) -> Any | None:
    """What a plain reduction begins with, if its terms alone do not give the same."""
    update = block.body.value
    if block.init is None:
        return update.a
    value, dtype = block.init.value, grammar.dtype(block.init.value)
    if type(value).__name__ not in ("FloatImm", "IntImm"):
        return value
    neutral = {"Add": 0, "Max": tirx.min_value(dtype).value, "Min": tirx.max_value(dtype).value}
    return None if value.value == neutral.get(type(update).__name__) else value


def _realizes(stmt: Any, loops: tuple[Any, ...]) -> list[Any] | None:
    """The blocks that compute, as they are realised; None where one is not visited plainly."""
    if isinstance(stmt, tirx.For):
        return _realizes(stmt.body, (*loops, stmt))
    if isinstance(stmt, tirx.SeqStmt) and not loops:
        parts = [_realizes(part, ()) for part in stmt.seq]
        return None if None in parts else [each for part in parts for each in part or ()]
    if not isinstance(stmt, s_tir.SBlockRealize) or not _visits_each_point_once(stmt, loops):
        return None
    return [stmt] if len(stmt.block.iter_vars) else _realizes(stmt.block.body, ())


def _visits_each_point_once(realize: Any, loops: tuple[Any, ...]) -> bool:
    """Whether each loop is over the domain of one iterator, and nothing is skipped."""
    bindings = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    bound = [(value, int(v.dom.extent)) for v, value in bindings if int(v.dom.extent) > 1]
    moving = [loop for loop in loops if int(loop.extent) > 1]
    is_bound = [
        any(loop.loop_var.same_as(value) and int(loop.extent) == extent for value, extent in bound)
        for loop in moving
    ]
    condition = realize.predicate
    is_always = isinstance(condition, tirx.IntImm) and int(condition.value) == 1
    return is_always and all(is_bound) and len(bound) == len(moving)


def _is_plain(block: Any) -> bool:
    """Whether a block stores one element a point, by no other element of the same buffer."""
    store = block.body
    stores = [store] if block.init is None else [store, block.init]
    if not all(isinstance(each, tirx.BufferStore) for each in stores):
        return False
    loads: list[Any] = []
    structural.structural_walk(store.value, ((tvm.ir.TensorLoad, loads.append),))
    own = [load for load in loads if load.source.same_as(store.buffer)]
    if any(v.iter_type == REDUCTION for v in block.iter_vars) and not _accumulates(store, own):
        return False
    return all(_same_element(each, store) for each in (*own, *stores))


def _same_element(access: Any, store: Any) -> bool:
    """Whether a load or a store is of the element that `store` stores to."""
    buffer = access.source if isinstance(access, tvm.ir.TensorLoad) else access.buffer
    same_indices = tvm_ffi.structural_equal(access.indices, store.indices)
    return bool(same_indices) and bool(buffer.same_as(store.buffer))


def _accumulates(store: Any, own: list[Any]) -> bool:
    """Whether a reduction loads what it has so far once: as the first operand of its value."""
    first = getattr(store.value, "a", None)
    return len(own) == 1 and isinstance(first, tvm.ir.TensorLoad) and first.same_as(own[0])
