"""The reduction of partial results, computed where its only consumer is.

A split reduction (`variants.split_reductions`) ends in a second, short one. Left alone it writes
its results to memory for whatever follows (an activation, say). On a GPU this rule computes it for
each element inside the consumer's loops, in a register.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir.schedule import SBlockRV


def join_consumer(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> list[tvm.s_tir.Schedule]:
    """The schedule with the reduction inside its consumer's innermost loop, where it has one.

    Raises:
        RuntimeError, ValueError: TVM cannot compute it there.
    """
    consumers = schedule.get_consumers(block)
    if len(consumers) == 1 and _is_spatial(schedule, consumers[0]):
        schedule.compute_at(block, schedule.get_loops(consumers[0])[-1], preserve_unit_loops=True)
        schedule.set_scope(block, 0, "local")
    return [schedule]


def _is_spatial(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block works element by element, and is not scheduled yet."""
    statement = schedule.get(block)
    kinds = {int(each.iter_type) for each in statement.iter_vars}
    return not statement.annotations and kinds == {tirx.IterVar.DataPar}
