"""Kernels of transposed convolutions on a GPU: random decisions, against the reference."""

from __future__ import annotations

import pytest
import tvm

from felix import target, workloads
from felix.task import Task
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from tests.support.templates import on_gpu, transposed_programs
from tests.support.templates.transposed_programs import Dimension

pytestmark = on_gpu.MARKS

PROGRAMS = {
    "line": lambda: transposed_programs.program([Dimension(200, 5, 3)], 64, 96, images=4),
    "volume": lambda: transposed_programs.program([Dimension(8, 3)] * 3, 32, 64, epilogue=True),
    "groups": lambda: transposed_programs.program(
        [Dimension(28), Dimension(17, 3)], 32, 48, groups=4, images=2, epilogue=True
    ),
    "first_groups": lambda: transposed_programs.program(
        [Dimension(14)] * 2, 32, 24, groups=2, images=2, first=True, dtype="bfloat16"
    ),
    "dilated": lambda: transposed_programs.program(
        [Dimension(15, 3, 3, 2)] * 2, 64, 40, flipped=False
    ),
    **transposed_programs.TOPI,
}


def _check(task: Task) -> None:
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem) and problem.phases is not None
    assert template.unsuited(problem) is None
    arch = str(task.target.attrs["arch"])
    on_gpu.check(task, template.templates(problem, target.hardware(task.target), arch))


@pytest.mark.parametrize(
    "spec",
    [
        "conv_transpose2d:8,1,1,100,512,stride=1,padding=0,layout=NCHW,dtype=bfloat16",
        "conv_transpose2d:8,4,4,512,256,layout=NCHW,epilogue=bias+relu,dtype=bfloat16",
        "conv_transpose2d:8,32,32,64,3,layout=NCHW,dtype=float16",
        "conv_transpose2d:8,16,16,128,64,epilogue=bias+relu,dtype=float16",
        "conv_transpose2d:2,28,28,64,64,3,output_padding=1,epilogue=bias+residual,dtype=bfloat16",
        "conv_transpose2d:2,17,19,20,36,5,stride=3,dtype=float16",
        "conv_transpose2d:4,28,28,64,32,2,padding=0,dtype=bfloat16",
        "conv_transpose2d:1,15,15,32,24,3,stride=2,dtype=bfloat16",
    ],
)
def test_random_decisions_compute_the_workload(spec: str) -> None:
    _check(workloads.parse(spec, "cuda"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_decisions_compute_the_program(name: str) -> None:
    func: tvm.tirx.PrimFunc = PROGRAMS[name]()["main"]
    _check(Task.from_prim_func(func, "cuda", name=name))
