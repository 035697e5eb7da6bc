"""The `reference` verb of a builder: a task's description and its reference, for run workers.

The reference is the task's unscheduled program, for a GPU under the default schedule. What has no
such form for a GPU (`cuda.reference`) is computed here, and its outputs are the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm

from felix import target as targets
from felix.measure import build, task_program
from felix.measure import payload as payloads
from felix.measure.checking import expected, reference
from felix.measure.cuda import program_file
from felix.measure.cuda import reference as cuda_reference
from felix.measure.description import OUTPUTS, Description

#: Of all expected outputs that a builder computes.
MAX_OUTPUT_BYTES = 256_000_000


def handle(payload: str, stem: str, link: str, seed: int, check: bool) -> dict[str, Any]:
    """The verb: the reference goes to `stem` + suffix; there is none if outputs are unchecked."""
    program = payloads.read_tir(payload)
    task = describe(program.mod, program.target, seed)
    library = ""
    if check and task.device == "cuda":
        library = _for_gpu(program.mod, program.target, task, stem)
    elif check:
        cpu = task_program.cpu_target(program.target)
        mod = task_program.for_cpu(program.mod)
        library = build.build(mod, cpu, stem, build.Link(link), by_tvm_alone=True)
    return {"description": task.to_json(), "library": library}


def describe(mod: tvm.IRModule, target: tvm.target.Target, seed: int) -> Description:
    """What run workers of a target need to know of a program; its inputs are those of a seed."""
    is_gpu = target.kind.name == "cuda"
    tolerance = cuda_reference.tolerance if is_gpu else task_program.tolerance
    return Description(
        device="cuda" if is_gpu else "cpu",
        target=str(target.attrs["arch"]) if is_gpu else targets.describe(target),
        arguments=task_program.arguments(mod),
        tolerance=tolerance(mod),
        seed=seed,
    )


def _for_gpu(mod: tvm.IRModule, target: tvm.target.Target, task: Description, stem: str) -> str:
    """Write the reference for a GPU: a program if there is one, else its outputs; the path."""
    program = cuda_reference.program(mod, target)
    if program is not None:
        program_file.write(stem + ".cubin", *program)
        return stem + ".cubin"
    _check_size(task.arguments)
    run = task_program.on_cpu(mod, target, task.arguments)
    expected.write(stem + OUTPUTS, expected.compute(run, task.arguments, task.seed))
    return stem + OUTPUTS


def _check_size(args: Sequence[reference.Argument]) -> None:
    """Refuse outputs that are too large to be sent; ValueError."""
    n_bytes = sum(
        math.prod(arg.shape) * reference.np_dtype(arg.dtype).itemsize
        for arg in args
        if arg.is_output
    )
    if n_bytes > MAX_OUTPUT_BYTES:
        raise ValueError(
            f"its outputs are computed by a builder, and {n_bytes / 1e6:.0f} MB are more than the "
            f"{MAX_OUTPUT_BYTES / 1e6:.0f} MB that go to a run worker"
        )
