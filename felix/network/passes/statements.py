"""Programs as the statements of their root block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import stmt as s_stmt
from tvm_ffi import structural


def uses(statement: Any) -> tuple[set[Any], set[Any]]:
    """The buffers that a statement reads and writes, without those that it allocates."""
    reads: set[Any] = set()
    writes: set[Any] = set()
    inner: set[Any] = set()

    def block(node: Any) -> None:
        # Intrinsics access buffers by pointers and windows: the block says which ones.
        inner.update(node.alloc_buffers, (window.buffer for window in node.match_buffers))
        reads.update(region.source for region in node.reads)
        writes.update(region.source for region in node.writes)

    rules = (
        (TensorLoad, lambda node: reads.add(node.source)),
        (tirx.BufferStore, lambda node: writes.add(node.buffer)),
        (s_stmt.SBlock, block),
    )
    structural.structural_walk(statement, rules)
    return reads - inner, writes - inner


def allocates(statement: Any, scopes: Sequence[str]) -> bool:
    """Whether a statement allocates a buffer in one of these scopes."""
    found: list[Any] = []
    rules = (
        (s_stmt.SBlock, lambda node: found.extend(node.alloc_buffers)),
        (tirx.AllocBuffer, lambda node: found.append(node.buffer)),
    )
    structural.structural_walk(statement, rules)
    return any(buffer.scope() in scopes for buffer in found)


def is_plain(buffer: Any) -> bool:
    """Whether a buffer's elements lie one after the other from its beginning."""
    offset = buffer.elem_offset
    begins = offset is None or (isinstance(offset, tirx.IntImm) and int(offset) == 0)
    return begins and not list(buffer.strides or [])


def program(
    func: tirx.PrimFunc, buffers: Sequence[Any], statements: Sequence[Any], local: Sequence[Any]
) -> tirx.PrimFunc:
    """Some statements of a program as a program that takes these buffers."""
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
    root = func.body.block
    block = s_tir.SBlock(
        [], [], [], root.name_hint, body, alloc_buffers=list(local), annotations=root.annotations
    )
    made = tirx.PrimFunc(list(buffers), s_tir.SBlockRealize([], True, block), attrs=func.attrs)
    return s_tir.renew_defs(made)
