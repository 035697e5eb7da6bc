"""The program before tuning, as it can run: what the best schedule is compared with.

On a CPU that is the program as it is, the *unscheduled program*. On a GPU nothing runs that is not
bound to threads. There it is the *default schedule*: every block is a kernel, its spatial loops
are fused and spread over blocks of threads, one result a thread, and its sums are serial.
"""

from __future__ import annotations

import math

import tvm
from tvm import s_tir, tirx

from felix import errors
from felix.tir import grammar
from felix.tir.design_space import blocks

#: Threads of a block; fewer where there are fewer results.
THREADS = 256
#: A longer sum in one thread takes seconds.
MAX_TERMS = 1 << 21


def of(mod: tvm.IRModule, target: tvm.target.Target) -> s_tir.Schedule:
    """The unscheduled program, or the default schedule where the target is a GPU.

    Raises:
        UnsupportedSchedule: as `on_gpu`; or TVM finds no root block to schedule.
    """
    try:
        if target.kind.name == "cuda":
            return on_gpu(mod)
        schedule = s_tir.Schedule(mod, debug_mask="none")
        schedule.get_sblock("root")  # databases of TVM hold no trace without an instruction
    except grammar.SCHEDULE_ERRORS as error:
        raise errors.UnsupportedSchedule(
            f"TVM cannot schedule the program: {grammar.first_line(error)}"
        ) from error
    return schedule


def on_gpu(mod: tvm.IRModule) -> s_tir.Schedule:
    """The default schedule of a program on a GPU.

    Raises:
        UnsupportedSchedule: a block has no loops of its own that threads can share, or a thread
            would combine more than `MAX_TERMS` values.
    """
    schedule = s_tir.Schedule(mod, debug_mask="none")
    for realize in blocks.realizes(mod["main"])[:-1]:
        name = str(realize.block.name_hint)
        n_terms = grammar.extent(realize.block, grammar.REDUCE)
        if n_terms > MAX_TERMS:
            raise errors.UnsupportedSchedule(
                f"block {name} has no default schedule: a thread would combine {n_terms} values"
            )
        try:
            _bind(schedule, name, blocks.reduced_variables(realize))
        except grammar.SCHEDULE_ERRORS as error:
            raise errors.UnsupportedSchedule(
                f"block {name} has no default schedule: {grammar.first_line(error)}"
            ) from error
    return schedule


def _bind(schedule: s_tir.Schedule, name: str, reduced: list[tirx.Var]) -> None:
    block = schedule.get_sblock(name, func_name="main")
    loops = schedule.get_loops(block)
    is_serial = [schedule.get(loop).loop_var in reduced for loop in loops]
    spatial = [loop for loop, serial in zip(loops, is_serial, strict=True) if not serial]
    if not spatial:
        spatial = [schedule.add_unit_loop(loops[0] if loops else block)]
    serial = [loop for loop, serial in zip(loops, is_serial, strict=True) if serial]
    if len(spatial) + len(serial) > 1:
        schedule.reorder(*spatial, *serial)
    n_results = math.prod(int(schedule.get(loop).extent) for loop in spatial)
    outer, inner = schedule.split(schedule.fuse(*spatial), [None, min(THREADS, n_results)])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
