"""Chains of row reductions as one kernel of a GPU, a row a thread block.

MetaSchedule reduces rows over threads and stitches what follows into the same kernel, but not if
an operand of the rows is the same for all of them (a mask or a bias that is added before a softmax
or a norm). It takes such a reduction for a product, whose tiles reuse the operand: every reduction
is a kernel of its own.

Here all of it is one kernel. The loop over rows is bound to blocks, every reduction is computed at
it by all threads, with its result in shared memory, and what follows goes over the row with as
many threads. Elementwise blocks in between are computed where they are read. The number of threads
is a decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm.s_tir import stmt as s_stmt

from felix.tir import grammar
from felix.tir.design_space import blocks, thread_reductions
from felix.tir.design_space.variants import split_reductions
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant

#: Terms of the shortest rows.
MIN_TERMS = 33
VARIANT = Variant("row_chain")


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """One kernel, where all reductions are of the same rows and an operand has no rows."""
    every = [each.block for each in blocks.realizes(mod["main"])[:-1]]
    reductions = [block for block in every if block.init is not None]
    if not machine.is_gpu or not reductions or every[-1].init is not None:
        return []
    rows = {_extent(block, split_reductions.SPATIAL) for block in reductions}
    terms = {_extent(block, split_reductions.REDUCE) for block in reductions}
    if (
        len(rows) > 1
        or min(terms) < MIN_TERMS
        or any(map(split_reductions.is_product, reductions))
    ):
        return []
    if not _has_common_operand(every, min(rows)) or _n_row_loops(every[-1], min(rows)) is None:
        return []
    return [Prefix(VARIANT, _stitch)]


def _stitch(schedule: tvm.s_tir.Schedule) -> None:
    every = [each.block for each in blocks.realizes(schedule.mod["main"])[:-1]]
    reduced = [str(block.name_hint) for block in every if block.init is not None]
    rows = _extent(next(b for b in every if b.init is not None), split_reductions.SPATIAL)
    n_loops = _n_row_loops(every[-1], rows)
    for block in every[:-1]:
        if block.init is None:
            schedule.compute_inline(schedule.get_sblock(str(block.name_hint), func_name="main"))
    last = schedule.get_sblock(str(every[-1].name_hint), func_name="main")
    loops = schedule.get_loops(last)
    row = schedule.fuse(*loops[:n_loops])
    schedule.bind(row, "blockIdx.x")
    n_choices = len(thread_reductions.THREADS)
    threads = schedule.sample_categorical(
        list(thread_reductions.THREADS), [1 / n_choices] * n_choices
    )
    _spread(schedule, loops[n_loops:], threads)
    for name in reversed(reduced):
        block = schedule.get_sblock(name, func_name="main")
        schedule.compute_at(block, row, preserve_unit_loops=True)
        for index in range(len(schedule.get(block).writes)):
            schedule.set_scope(block, index, "shared")
        _spread(schedule, schedule.get_loops(block)[1:], threads)


def _spread(
    schedule: tvm.s_tir.Schedule,
    loops: Sequence[tvm.s_tir.schedule.LoopRV],
    threads: tvm.s_tir.schedule.ExprRV,
) -> None:
    """Give the iterations of loops to the threads of a block, neighbours to neighbours."""
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    _, inner = schedule.split(fused, factors=[None, threads])
    schedule.bind(inner, "threadIdx.x")


def _has_common_operand(every: Sequence[s_stmt.SBlock], rows: int) -> bool:
    """Whether an elementwise block reads a tensor whose elements all rows share."""
    for block in every[:-1]:
        n_loops = None if block.init is not None else _n_row_loops(block, rows)
        if n_loops is None:
            continue
        of_rows = {each.var for each in block.iter_vars[:n_loops] if int(each.dom.extent) > 1}
        inner = {each.var for each in block.iter_vars[n_loops:]}
        for region in block.reads:
            used = {var for each in region.region for var in grammar.expressions(each.min)}
            if used & inner and not used & of_rows:
                return True
    return False


def _n_row_loops(block: s_stmt.SBlock, rows: int) -> int | None:
    """How many of the outer loops of a block go over the rows; None if none do."""
    count = 1
    for number, each in enumerate(block.iter_vars[:-1], start=1):
        count *= int(each.dom.extent)
        if count == rows:
            return number
    return None


def _extent(block: s_stmt.SBlock, kind: int) -> int:
    return math.prod(int(each.dom.extent) for each in block.iter_vars if each.iter_type == kind)
