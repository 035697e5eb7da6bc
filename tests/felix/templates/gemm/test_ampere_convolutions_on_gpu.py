"""mma.sync kernels of convolutions on a GPU: random decisions, against the reference."""

from __future__ import annotations

import pytest

from felix import target, workloads
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from tests.support.templates import on_gpu

pytestmark = on_gpu.MARKS


@pytest.mark.parametrize(
    "spec",
    [
        "conv2d:8,56,56,64,64,3,padding=1,epilogue=bias+relu,dtype=bfloat16",
        "conv2d:8,56,56,64,128,3,padding=1,stride=2,dtype=float16",
        "conv2d:8,56,56,64,128,1,stride=2,dtype=bfloat16",
        "conv2d:4,64,64,3,64,7,padding=3,stride=2,dtype=bfloat16",
        "conv2d:2,17,19,20,36,3,padding=2,dilation=2,epilogue=bias+gelu+residual,dtype=float16",
        "conv2d:2,28,28,64,64,3,padding=1,groups=4,dtype=bfloat16",
        "conv2d:2,28,28,64,64,3,padding=1,dtype=int8",
        "conv2d:2,28,28,64,96,3,padding=1,layout=NCHW,epilogue=bias,dtype=bfloat16",
        "conv1d:4,200,64,96,5,padding=2,dtype=float16",
        "conv3d:1,8,28,28,32,64,3,padding=1,dtype=bfloat16",
    ],
)
def test_random_decisions_compute_the_convolution(spec: str) -> None:
    task = workloads.parse(spec, "cuda")
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem)
    assert template.unsuited(problem) is None
    arch = str(task.target.attrs["arch"])
    on_gpu.check(task, template.templates(problem, target.hardware(task.target), arch))
