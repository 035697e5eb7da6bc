"""The blocks of a program, and two rules for reductions that MetaSchedule's leave alone.

`over_threads`: threads of a block combine the terms of a reduction. MetaSchedule's rule for that
(CrossThreadReduction) fails on partial results that another reduction reads, because it tries to
compute them there.

`join_consumer`: a split reduction (`variants.split_reductions`) ends in a second, short one. Left
alone it writes its results to memory for whatever follows (an activation, say). On a GPU this rule
computes it for each element inside the consumer's loops, in a register. TVM neither binds loops
around a reduction nor takes its start out of it where its place among the loops is no affine map,
as in the join of phases that they do not fill. There it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir.schedule import ExprRV, LoopRV, SBlockRV

from felix.tir import grammar


def realizes(func: tirx.PrimFunc) -> list[s_stmt.SBlockRealize]:
    """Every block with its bindings: inner ones before those around them, the root block last."""
    return list(_visited(func.body))


def names(func: tirx.PrimFunc) -> list[str]:
    """Names of all blocks, in that order."""
    return [str(realize.block.name_hint) for realize in realizes(func)]


def realize_of(func: tirx.PrimFunc, name: str) -> s_stmt.SBlockRealize:
    """The first block of this name, with its bindings."""
    return next(each for each in realizes(func) if str(each.block.name_hint) == name)


def reduced_variables(realize: s_stmt.SBlockRealize) -> list[tirx.Var]:
    """The variables that the reduction iterators of a block depend on."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    reduced = [value for each, value in pairs if each.iter_type == grammar.REDUCE]
    return [var for value in reduced for var in tirx.analysis.undefined_vars(value)]


def _visited(statement: Any) -> Iterator[s_stmt.SBlockRealize]:
    if isinstance(statement, tirx.SeqStmt):
        for each in statement.seq:
            yield from _visited(each)
    elif isinstance(statement, tirx.For):
        yield from _visited(statement.body)
    elif isinstance(statement, s_stmt.SBlockRealize):
        yield from _visited(statement.block.body)
        yield statement


#: Threads of a block, as MetaSchedule has them.
THREADS = (4, 8, 16, 32, 64, 128, 256, 512)


def over_threads(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> list[tvm.s_tir.Schedule]:
    """The schedule with the reduction loops of a block spread over threads, a decision how many.

    The block's spatial loops come first.
    """
    kinds = [int(each.iter_type) for each in schedule.get(block).iter_vars]
    loops = schedule.get_loops(block)[kinds.count(grammar.SPATIAL) :]
    spread(schedule, fused(schedule, loops), one_of(schedule, THREADS))
    return [schedule]


def spread(schedule: tvm.s_tir.Schedule, loop: LoopRV, threads: ExprRV) -> None:
    """Give neighbouring iterations of a loop to neighbouring threads of a block."""
    _, inner = schedule.split(loop, factors=[None, threads])
    schedule.bind(inner, "threadIdx.x")


def fused(schedule: tvm.s_tir.Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """The loops as one."""
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def one_of(schedule: tvm.s_tir.Schedule, choices: Sequence[int]) -> ExprRV:
    """A decision between numbers, all alike."""
    return schedule.sample_categorical(list(choices), [1 / len(choices)] * len(choices))


def join_consumer(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> list[tvm.s_tir.Schedule]:
    """The schedule with the reduction inside its consumer's innermost loop, where it has one.

    Raises:
        RuntimeError, ValueError: TVM cannot compute it there.
    """
    consumers = schedule.get_consumers(block)
    if len(consumers) == 1 and _is_spatial(schedule, consumers[0]):
        loops = schedule.get_loops(consumers[0])
        if _can_be_bound(schedule, block, loops):
            schedule.compute_at(block, loops[-1], preserve_unit_loops=True)
            schedule.set_scope(block, 0, "local")
    return [schedule]


def _is_spatial(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block works element by element, and is not scheduled yet."""
    statement = schedule.get(block)
    kinds = {int(each.iter_type) for each in statement.iter_vars}
    return not statement.annotations and kinds == {grammar.SPATIAL}


def _can_be_bound(schedule: tvm.s_tir.Schedule, block: SBlockRV, loops: Sequence[LoopRV]) -> bool:
    """Whether TVM binds the loops once the block is in the last of them."""
    tried = schedule.copy()
    tried.compute_at(block, loops[-1], preserve_unit_loops=True)
    try:
        tried.bind(fused(tried, loops), "threadIdx.x")
    except s_tir.ScheduleError:
        return False
    return True
