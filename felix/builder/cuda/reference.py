"""Expected outputs computed on the device, and how far from them outputs may be.

The reference is the program under the default schedule (`felix.tir.design_space`): each block is a
kernel of its own whose threads are the block's outputs, sums keep their order; fast math is off.
On a CPU it takes seconds for a batched convolution; this takes milliseconds. What has no such form
(no output axis, very long sums) is left to a CPU.
"""

from __future__ import annotations

import tvm

from felix import errors, launch_plan
from felix.builder import task_program
from felix.builder.cuda import build
from felix.runner.cuda import nvrtc
from felix.tir import grammar
from felix.tir.design_space import default_schedule

_PRECISE = ("--fmad=true",)
#: Relative tolerance where fast math's approximation of an operation dominates.
_APPROXIMATE = {
    "tanh": 1.5e-3,
    **dict.fromkeys(("pow", "log", "sin", "cos"), 1e-4),
    **dict.fromkeys(("exp", "sigmoid", "erf", "rsqrt", "sqrt"), 2e-5),
}


def program(
    mod: tvm.IRModule, target: tvm.target.Target
) -> tuple[launch_plan.LaunchPlan, bytes] | None:
    """Plan and cubin of the reference; None where the CPU has to compute it."""
    simple = scheduled(mod)
    if simple is None:
        return None
    lowered = build.lower(simple, target)
    source = lowered.source
    return lowered.plan, nvrtc.compile_cubin(
        source.text, lowered.arch, options=_PRECISE, headers=source.headers
    )


def tolerance(mod: tvm.IRModule) -> float:
    """Relative tolerance of a program on a GPU: TVM's builds use fast math there.

    It replaces divisions, roots and transcendental functions by approximations of a few
    units in the last place, tanh by one of 5e-4.
    """
    names = task_program.calls(mod)
    limits = [limit for name, limit in _APPROXIMATE.items() if name in names]
    return max([task_program.tolerance(mod), *limits])


def scheduled(mod: tvm.IRModule) -> tvm.IRModule | None:
    """The program with one thread an output element; None where it has no such form."""
    for block in task_program.leaf_blocks(mod["main"]):
        if all(each.iter_type == grammar.REDUCE for each in block.iter_vars):
            return None
    try:
        return default_schedule.on_gpu(mod).mod
    except errors.UnsupportedSchedule:
        return None
