"""Chains of row reductions as one kernel of a GPU, a row a thread block.

MetaSchedule reduces rows over threads and stitches what follows into the same kernel, but not if
an operand of the rows is the same for all of them (a mask or a bias that is added before a softmax
or a norm). It takes such a reduction for a product, whose tiles reuse the operand: every reduction
is a kernel of its own. And where little is left of a row (its mean and deviation) a block of
MetaSchedule's has as many rows as threads, one after another.

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
from felix.tir.design_space import blocks
from felix.tir.design_space.variants import split_reductions
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant

#: Terms of the shortest rows.
MIN_TERMS = 33
#: Elements of the result for each row that are little.
FEW_RESULTS = 4
VARIANT = Variant("row_chain")


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """One kernel, where all reductions are of the same rows.

    An operand has no rows, or little is left of each.
    """
    every = [each.block for each in blocks.realizes(mod["main"])[:-1]]
    reductions = [block for block in every if block.init is not None]
    if not machine.is_gpu or not reductions or every[-1].init is not None:
        return []
    rows = {grammar.extent(block, grammar.SPATIAL) for block in reductions}
    terms = {grammar.extent(block, grammar.REDUCE) for block in reductions}
    if (
        len(rows) > 1
        or min(terms) < MIN_TERMS
        or any(map(split_reductions.is_product, reductions))
    ):
        return []
    if _row_loops(every, min(rows)) is None:
        return []
    leaves_little = _leaves_little(every[-1], min(rows)) and all(map(_is_along_rows, reductions))
    if not leaves_little and not _has_common_operand(every, min(rows)):
        return []
    return [Prefix(VARIANT, _stitch)]


def _stitch(schedule: tvm.s_tir.Schedule) -> None:
    every = [each.block for each in blocks.realizes(schedule.mod["main"])[:-1]]
    reduced = [str(block.name_hint) for block in every if block.init is not None]
    rows = grammar.extent(next(b for b in every if b.init is not None), grammar.SPATIAL)
    of_rows = _row_loops(every, rows) or []
    for block in every[:-1]:
        if block.init is None:
            schedule.compute_inline(schedule.get_sblock(str(block.name_hint), func_name="main"))
    last = schedule.get_sblock(str(every[-1].name_hint), func_name="main")
    loops = schedule.get_loops(last)
    outer = [loops[number] for number in of_rows]
    inner = [loop for number, loop in enumerate(loops) if number not in of_rows]
    if not inner:
        inner = [schedule.add_unit_loop(last)]
    if of_rows != list(range(len(of_rows))):
        schedule.reorder(*outer, *inner)
    row = schedule.fuse(*outer)
    schedule.bind(row, "blockIdx.x")
    threads = blocks.one_of(schedule, blocks.THREADS)
    blocks.spread(schedule, blocks.fused(schedule, inner), threads)
    for name in reversed(reduced):
        block = schedule.get_sblock(name, func_name="main")
        schedule.compute_at(block, row, preserve_unit_loops=True)
        for index in range(len(schedule.get(block).writes)):
            schedule.set_scope(block, index, "shared")
        terms = blocks.fused(schedule, schedule.get_loops(block)[1:])
        blocks.spread(schedule, terms, threads)


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


def _row_loops(every: Sequence[s_stmt.SBlock], rows: int) -> list[int] | None:
    """Which loops of the last block go over the rows; None if it is not known.

    They are the outer ones, or those by which it reads results of the reductions.
    """
    last = every[-1]
    n_outer = _n_row_loops(last, rows)
    if n_outer is not None:
        return list(range(n_outer))
    reduced = {each.source for block in every if block.init is not None for each in block.writes}
    used = {
        var
        for region in last.reads
        if region.source in reduced
        for each in region.region
        for var in grammar.expressions(each.min)
    }
    numbers = [number for number, each in enumerate(last.iter_vars) if each.var in used]
    extents = [int(last.iter_vars[number].dom.extent) for number in numbers]
    return numbers if numbers and math.prod(extents) == rows else None


def _leaves_little(last: s_stmt.SBlock, rows: int) -> bool:
    """Whether the result has few elements for each row."""
    return grammar.extent(last, grammar.SPATIAL) <= FEW_RESULTS * rows


def _is_along_rows(block: s_stmt.SBlock) -> bool:
    """Whether neighbouring terms of a reduction are neighbours in memory.

    Of a tensor that it reads at two places the region has more than one element.
    """
    axes = [each for each in block.iter_vars if int(each.dom.extent) > 1]
    last = [each.var for each in axes if each.iter_type == grammar.REDUCE][-1]
    return any(
        len(region.region) > 0
        and all(grammar.is_constant(indices.extent, 1) for indices in region.region)
        and last in set(grammar.expressions(region.region[-1].min))
        for region in block.reads
    )


def _n_row_loops(block: s_stmt.SBlock, rows: int) -> int | None:
    """How many of the outer loops of a block go over the rows; None if none do."""
    count = 1
    for number, each in enumerate(block.iter_vars[:-1], start=1):
        count *= int(each.dom.extent)
        if count == rows:
            return number
    return None
