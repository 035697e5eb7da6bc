"""The reduction of partial results, computed where its only consumer is.

A split reduction (`variants.split_reductions`) ends in a second, short one. Left alone it writes
its results to memory for whatever follows (an activation, say). On a GPU this rule computes it for
each element inside the consumer's loops, in a register.

TVM neither binds loops around a reduction nor takes its start out of it where its place among the
loops is no affine map, as in the join of phases that they do not fill. There it is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV


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
    return not statement.annotations and kinds == {tirx.IterVar.DataPar}


def _can_be_bound(schedule: tvm.s_tir.Schedule, block: SBlockRV, loops: Sequence[LoopRV]) -> bool:
    """Whether TVM binds the loops once the block is in the last of them."""
    tried = schedule.copy()
    tried.compute_at(block, loops[-1], preserve_unit_loops=True)
    try:
        tried.bind(tried.fuse(*loops) if len(loops) > 1 else loops[0], "threadIdx.x")
    except s_tir.ScheduleError:
        return False
    return True
