"""Moves of elements inside a program, made part of the indices of what reads them.

A slice, a view and a transposition in front of a product become the product's reads of the tensor
that they move, with indices as simple as they are: x[s, 64 * h + d], not a division and a
remainder that cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural

from felix.tir import grammar


def inline_moves(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function without blocks that only move elements to others; itself if it has none."""
    inner = [block for block in grammar.blocks(func.body) if len(block.iter_vars)]
    if len(inner) < 2:
        return func
    schedule = s_tir.Schedule(func, debug_mask="none")
    n_inlined = sum(_inline(schedule, block) for block in inner if is_move(block))
    return _with_simple_indices(schedule.mod["main"]) if n_inlined else func


def _inline(schedule: s_tir.Schedule, block: Any) -> bool:
    """Whether a block could be made part of its readers: what a function returns cannot."""
    try:
        schedule.compute_inline(schedule.get_sblock(str(block.name_hint), func_name="main"))
    except grammar.SCHEDULE_ERRORS:
        return False
    return True


def is_move(block: Any) -> bool:
    """Whether a block does nothing but store elements that it reads at known places."""
    body = block.body
    return (
        block.init is None
        and isinstance(body, tirx.BufferStore)
        and isinstance(body.value, TensorLoad)
        and not any(map(grammar.depends_on_data, body.value.indices))
    )


def _with_simple_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the indices of what blocks read in their simplest form."""
    body = structural.structural_map(func.body, (s_tir.SBlock, _with_simple_reads))
    return func.with_body(body)


def _with_simple_reads(block: s_tir.SBlock) -> s_tir.SBlock:
    domains = {each.var: each.dom for each in block.iter_vars}
    if not domains:
        return block

    written = [each.source for each in block.writes]

    def simple_load(load: TensorLoad) -> Any:
        if any(load.source.same_as(each) for each in written):
            return load  # a sum is known by reading what it stores
        return tirx.BufferLoad(load.source, [_simple(index, domains) for index in load.indices])

    body = structural.structural_map(block.body, (TensorLoad, simple_load))
    reads = [
        tirx.BufferRegion(each.source, [_simple_range(r, domains) for r in each.region])
        for each in block.reads
    ]
    return s_tir.SBlock(
        block.iter_vars,
        reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _simple_range(each: Any, domains: Mapping[Any, Any]) -> Any:
    return tvm.ir.Range.from_min_extent(_simple(each.min, domains), each.extent)


def _simple(index: Any, domains: Mapping[Any, Any]) -> Any:
    """An index in its simplest form, for variables in their domains."""
    analyzer = sym.Analyzer()
    for variable, domain in domains.items():
        analyzer.bind(variable, domain)
    (simple,) = sym.iter_map_simplify([analyzer.simplify(index, 4)], domains, True, 0, False)
    return analyzer.simplify(simple, 4)
