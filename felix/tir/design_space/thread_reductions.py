"""A reduction whose terms the threads of a block combine together.

MetaSchedule's rule for that (CrossThreadReduction) fails on partial results that another reduction
reads, because it tries to compute them there.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir.schedule import SBlockRV

#: Threads of a block, as MetaSchedule has them.
THREADS = (4, 8, 16, 32, 64, 128, 256, 512)


def over_threads(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> list[tvm.s_tir.Schedule]:
    """The schedule with the reduction loops of a block spread over threads, a decision how many.

    The block's spatial loops come first.
    """
    kinds = [int(each.iter_type) for each in schedule.get(block).iter_vars]
    loops = schedule.get_loops(block)[kinds.count(tirx.IterVar.DataPar) :]
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    threads = schedule.sample_categorical(list(THREADS), [1 / len(THREADS)] * len(THREADS))
    _, inner = schedule.split(fused, factors=[None, threads])
    schedule.bind(inner, "threadIdx.x")
    return [schedule]
