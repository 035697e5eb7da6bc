"""Kernels without tensor cores on a GPU: random decisions for several problems, against the
reference."""

from __future__ import annotations

import pytest

import felix
from felix import target, workloads
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from tests.support.templates import attention_programs, on_gpu

pytestmark = on_gpu.MARKS


@pytest.mark.parametrize(
    "spec",
    [
        "gemm:256,256,256",
        "gemm:1024,1024,1024",
        "gemm:100,200,328,transpose_b=true",
        "gemm:197,768,768,epilogue=bias+gelu+residual",
        "gemm:33,65,129,batch=3,transpose_a=true",
        "gemm:130,202,264,transpose_a=true,transpose_b=true,epilogue=bias+relu",
        "gemm:197,1021,509",
        "gemm:12,9,1000,batch=5",
        "gemm:1,4096,1024,epilogue=bias",
        "gemm:1,1000,4096,transpose_b=true",
        "gemm:5,1000,500,transpose_b=true,epilogue=bias",
        "gemm:7,3,2000",
    ],
)
def test_random_decisions_compute_the_program(spec: str) -> None:
    _check(workloads.parse(spec, "cuda"))


@pytest.mark.parametrize("which", ["scores", "mixed"])
@pytest.mark.parametrize("rows, dim", [(128, 64), (33, 20)])
def test_random_decisions_compute_attention(which: str, rows: int, dim: int) -> None:
    """Operands inside a tensor, two batch axes, and a causal mask of the scores."""
    mod = attention_programs.fused_qkv(
        which, batch=3, rows=rows, heads=5, dim=dim, dtype="float32"
    )
    _check(felix.Task.from_prim_func(mod["main"], "cuda", name=f"attention_{which}"))


def _check(task: felix.Task) -> None:
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem)
    assert template.unsuited_threads(problem) is None
    arch = str(task.target.attrs["arch"])
    on_gpu.check(task, template.thread_templates(problem, target.hardware(task.target), arch))
