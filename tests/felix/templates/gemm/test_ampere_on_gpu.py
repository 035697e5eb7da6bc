"""mma.sync kernels on a GPU: random decisions for several problems, against the reference."""

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
        "gemm:256,256,256,dtype=bfloat16",
        "gemm:100,200,328,transpose_b=true,dtype=int8",
        "gemm:197,768,768,epilogue=bias+gelu+residual,dtype=float16",
        "gemm:33,65,129,batch=3,transpose_a=true,dtype=float16",
        "gemm:1,4096,1024,transpose_b=true,epilogue=bias,dtype=float16",
        "gemm:130,200,264,transpose_b=true,epilogue=bias,allow_tf32=true",
        "gemm:130,200,263,transpose_a=true,batch=3,dtype=int8",
        "gemm:97,200,250,epilogue=bias+relu,allow_tf32=true",
    ],
)
def test_random_decisions_compute_the_program(spec: str) -> None:
    _check(workloads.parse(spec, "cuda"))


@pytest.mark.parametrize("which", ["scores", "mixed"])
@pytest.mark.parametrize("rows, dim", [(128, 64), (197, 40), (33, 20)])
def test_random_decisions_compute_attention(which: str, rows: int, dim: int) -> None:
    """Operands inside a tensor, two batch axes, and a causal mask of the scores."""
    mod = attention_programs.fused_qkv(which, batch=3, rows=rows, heads=5, dim=dim)
    _check(felix.Task.from_prim_func(mod["main"], "cuda", name=f"attention_{which}"))


def _check(task: felix.Task) -> None:
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem)
    arch = str(task.target.attrs["arch"])
    on_gpu.check(task, template.templates(problem, target.hardware(task.target), arch))
