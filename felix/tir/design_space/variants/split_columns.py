"""Reductions along columns, split in parts: adjacent threads read adjacent elements.

Where the innermost dimension of what is read is no reduced one (a sum over rows, a matrix with one
row times a matrix), threads that share the terms of one result read elements a row apart. Here
each thread has columns of its own, and the terms are cut in `parts`: part p has the terms p,
p + parts, p + 2 parts, and so on, so that the parts of one step are adjacent as well, however few
columns there are. The last step is guarded where the parts do not divide the terms; a prime number
of terms has any number of parts. Partial results are in registers, up to 16 bytes of columns a
thread, a decision. A second block combines the parts: a thread a result, or a block of threads
where there are many parts.

The number of parts is the one that balances both blocks, √terms, as far as a thread combines them,
or more where that leaves multiprocessors with less than `MIN_RESULTS` partial results, at most
with `MAX_RESULTS`; of numbers up to a fifth less, the largest divisor of the terms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import tvm
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir.schedule import LoopRV, SBlockRV

from felix.tir import grammar
from felix.tir.design_space import blocks
from felix.tir.design_space.variants import split_reductions
from felix.tir.design_space.variants.split_reductions import Reduction
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant

#: Partial results of one multiprocessor: one in each thread of a block, four in every thread.
MIN_RESULTS, MAX_RESULTS = 256, 8192
#: Terms of the shortest part.
MIN_PART = 16
#: Parts that one thread combines; more are combined by all threads of a block.
MAX_SERIAL_PARTS = 128
#: Threads of a block of partial results.
THREADS = (32, 64, 128, 256, 512, 1024)
#: What a thread loads with one instruction; columns of other types are loaded one by one.
VECTOR_LANES, VECTOR_TYPES = 4, ("float32", "int32")
#: Rules of MetaSchedule that would have the loops otherwise.
_REPLACED = ("MultiLevelTiling", "CrossThreadReduction")


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The program with its largest reduction split, where that goes along columns."""
    largest = split_reductions.largest_reduction(mod["main"]) if machine.is_gpu else None
    if largest is None or not largest.goes_along_columns or not largest.is_large:
        return []
    parts = number_of_parts(largest.results, largest.terms, machine.cores)
    return [_prefix(largest, parts)] if parts > 1 else []


def number_of_parts(results: int, terms: int, cores: int) -> int:
    """Of a reduction; less than 2 where it is not worth a second kernel."""
    busy = -(-MIN_RESULTS * cores // results)
    most = min(MAX_RESULTS * cores // results, terms // MIN_PART)
    parts = min(max(min(math.isqrt(terms), MAX_SERIAL_PARTS), busy), most)
    divisors = (d for d in range(parts, parts * 4 // 5, -1) if terms % d == 0)
    return next(divisors, parts)


def _prefix(largest: Reduction, parts: int) -> Prefix:
    def apply(schedule: tvm.s_tir.Schedule) -> None:
        block = schedule.get_sblock(largest.name, func_name="main")
        reduced = schedule.get_loops(block)[largest.n_spatial :]
        _, part = schedule.split(blocks.fused(schedule, reduced), factors=[None, parts])
        partial = schedule.rfactor(part, factor_axis=0)
        *spatial, step, part = schedule.get_loops(partial)
        before = largest.n_spatial - largest.n_columns
        schedule.reorder(*spatial[:before], part, *spatial[before:], step)

    return Prefix(
        Variant("split_columns", (("parts", parts),)),
        apply,
        before_finishing=functools.partial(_over_columns, parts=parts),
        only=largest.name,
        without=_REPLACED,
    )


def _over_columns(
    schedule: tvm.s_tir.Schedule, block: SBlockRV, parts: int
) -> list[tvm.s_tir.Schedule]:
    """The partial results in registers of threads over columns, then their reduction."""
    (partial,) = schedule.get_producers(block)
    *spatial, step = schedule.get_loops(partial)
    lanes = _lanes(schedule.get(partial))
    columns: list[LoopRV] = []
    if lanes > 1:
        factors = schedule.sample_perfect_tile(spatial[-1], n=2, max_innermost_factor=lanes)
        spatial[-1], column = schedule.split(spatial[-1], factors=factors)
        schedule.reorder(step, column)
        columns = [column]
    copy = schedule.cache_write(partial, 0, "local")
    threads = blocks.one_of(schedule, THREADS)
    outer, inner = schedule.split(schedule.fuse(*spatial), factors=[None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    schedule.reverse_compute_at(copy, inner, preserve_unit_loops=True)
    if columns:
        schedule.vectorize(columns[0])
        schedule.vectorize(schedule.get_loops(copy)[-1])
    if parts > MAX_SERIAL_PARTS:
        return blocks.over_threads(schedule, block)
    if not schedule.get_consumers(block):
        result = schedule.cache_write(block, 0, "local")
        *_, column, _ = schedule.get_loops(block)
        schedule.reverse_compute_at(result, column, preserve_unit_loops=True)
        return [schedule]
    return blocks.join_consumer(schedule, block)


def _lanes(block: s_stmt.SBlock) -> int:
    """The most columns that a thread loads with one instruction."""
    extent = next(
        int(each.dom.extent)
        for each in reversed(block.iter_vars)
        if each.iter_type == grammar.SPATIAL
    )
    types = {str(region.source.dtype) for region in (*block.reads, *block.writes)}
    divides = any(extent % lanes == 0 for lanes in range(2, VECTOR_LANES + 1))
    return VECTOR_LANES if divides and types <= set(VECTOR_TYPES) else 1
