"""Kernels of few rows on a GPU: random decisions for several problems, against the reference."""

from __future__ import annotations

import pytest

from felix import target, workloads
from felix.templates.gemm.gemv import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from tests.support.templates import on_gpu

pytestmark = on_gpu.MARKS


@pytest.mark.parametrize(
    "spec",
    [
        "gemm:1,768,3072,transpose_b=true,dtype=bfloat16",
        "gemm:1,4096,1024,transpose_b=true,epilogue=bias",
        "gemm:7,1000,333,transpose_b=true,epilogue=bias+relu,dtype=float16",
        "gemm:2,197,64,batch=12,transpose_b=true,dtype=bfloat16",
        "gemm:8,512,2048,transpose_b=true,dtype=int8",
        "gemm:4,512,2048,transpose_b=true,dtype=float8_e4m3fn,out_dtype=bfloat16",
    ],
)
def test_random_decisions_compute_the_program(spec: str) -> None:
    task = workloads.parse(spec, "cuda")
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem) and template.unsuited(problem) is None
    arch = str(task.target.attrs["arch"])
    on_gpu.check(task, template.templates(problem, target.hardware(task.target), arch))
