"""Short rows reduced side by side in a GPU's thread block.

MetaSchedule's reductions over threads give a row (one result) all threads of a block. A row of a
hundred terms keeps few threads busy, and such blocks are small. Here a block takes R rows with T
threads each: the loop over rows is split in blocks and rows of a block, which are threadIdx.y. R
and T are decisions, R a divisor of the number of rows up to `MAX_ROWS`.

What MetaSchedule fuses into the loop over rows stays there: all of a softmax is one kernel. Its
results of a row are in registers of all the row's threads. In shared memory, where MetaSchedule
has them, they would need a barrier, which TVM leaves out if their index depends on threadIdx.y. A
schedule in which a reduction has no group of rows is none of this variant.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir.schedule import SBlockRV

from felix.tir import grammar
from felix.tir.design_space import blocks
from felix.tir.design_space.variants import split_reductions
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant

MAX_ROWS = 32
#: Terms of the shortest rows that MetaSchedule reduces over threads, and of the longest grouped.
MIN_TERMS, MAX_TERMS = 33, 2048
VARIANT = Variant("row_groups")


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """Grouped rows, where all reductions of a program have short rows, and more than cores."""
    reductions = [each.block for each in blocks.realizes(mod["main"]) if each.block.init]
    if not machine.is_gpu or not reductions:
        return []
    if not all(_has_short_rows(block, machine) for block in reductions):
        return []
    # the task's program is the variant's: its loops over rows are split later
    return [Prefix(VARIANT, before_finishing=group_rows, accepts=is_grouped)]


def group_rows(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> list[tvm.s_tir.Schedule]:
    """The schedule with the rows of a reduction grouped, if they are reduced over threads.

    Reductions in the same loop over rows are grouped once, at the first that is visited.
    """
    n_loops = _n_row_loops(schedule.copy(), block)
    if n_loops > 0:
        rows = schedule.fuse(*schedule.get_loops(block)[:n_loops])
        factors = schedule.sample_perfect_tile(rows, n=2, max_innermost_factor=MAX_ROWS)
        outer, inner = schedule.split(rows, factors=factors)
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.y")
    if "threadIdx.y" in _threads_of(schedule.copy(), block):
        _keep_in_registers(schedule, block)
    return [schedule]


def is_grouped(schedule: tvm.s_tir.Schedule) -> bool:
    """Whether every reduction of a schedule works on a group of rows."""
    looking = schedule.copy()
    reductions = [
        str(each.block.name_hint)
        for each in blocks.realizes(schedule.mod["main"])
        if each.block.init is not None
    ]
    return all(
        "threadIdx.y" in _threads_of(looking, looking.get_sblock(name)) for name in reductions
    )


def _has_short_rows(block: s_stmt.SBlock, machine: Machine) -> bool:
    terms = grammar.extent(block, grammar.REDUCE)
    rows = grammar.extent(block, grammar.SPATIAL)
    is_divisible = any(rows % n == 0 for n in range(2, MAX_ROWS + 1))
    is_short = MIN_TERMS <= terms <= MAX_TERMS
    return (
        is_short
        and is_divisible
        and rows > machine.cores
        and not split_reductions.is_product(block)
    )


def _n_row_loops(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> int:
    """How many outer loops are over the rows of a reduction.

    0 if they are bound, if no loop inside is bound to threads, or if the outer loops are not all
    rows: MetaSchedule splits those that go on in a consumer of as many elements as rows.
    """
    if schedule.get(block).init is None or _threads_of(schedule, block) != ["threadIdx.x"]:
        return 0
    loops = schedule.get_loops(block)
    n_rows, n_outer = grammar.extent(schedule.get(block), grammar.SPATIAL), 1
    name = str(schedule.get(block).name_hint)
    reduced = blocks.reduced_variables(blocks.realize_of(schedule.mod["main"], name))
    for i, node in enumerate(map(schedule.get, loops)):
        if node.thread_binding is not None or node.loop_var in reduced:
            return i if n_outer == n_rows else 0
        n_outer *= int(node.extent)
        if not isinstance(node.body, tirx.For):
            return i + 1 if n_outer == n_rows else 0
    return 0


def _keep_in_registers(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> None:
    """Move what a reduction stores from shared memory to registers."""
    if schedule.get(block).init is None:
        return
    for index, region in enumerate(schedule.get(block).writes):
        if str(region.source.scope()) == "shared":
            schedule.set_scope(block, index, "local")


def _threads_of(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> list[str]:
    """The thread axes that a block's loops are bound to, outermost first."""
    bindings = (schedule.get(loop).thread_binding for loop in schedule.get_loops(block))
    return [str(binding.thread_tag) for binding in bindings if binding is not None]
