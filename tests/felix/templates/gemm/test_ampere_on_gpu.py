"""mma.sync kernels on a GPU: random decisions for several problems, against the reference."""

from __future__ import annotations

import random

import pytest
import tvm

import felix
from felix import errors, target, workloads
from felix.measure.pool import local
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from felix.templates.generated import GeneratedProgram
from tests.support.templates import attention_programs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tvm.runtime.device("cuda", 0).exist, reason="needs an NVIDIA GPU"),
]
OPTIONS = local.LocalOptions(builders=4, run_timeout_s=5.0, build_timeout_s=30.0)


@pytest.mark.parametrize(
    "spec",
    [
        "gemm:256,256,256,dtype=bfloat16",
        "gemm:100,200,328,transpose_b=true,dtype=int8",
        "gemm:197,768,768,epilogue=bias+gelu+residual,dtype=float16",
        "gemm:33,65,129,batch=3,transpose_a=true,dtype=float16",
        "gemm:1,4096,1024,transpose_b=true,epilogue=bias,dtype=float16",
        "gemm:130,200,264,transpose_b=true,epilogue=bias,allow_tf32=true",
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
    (made,) = template.templates(problem, target.hardware(task.target), arch)
    programs = _random_programs(made, 8)
    with local.LocalPool(task, OPTIONS) as pool:
        results = pool.measure(programs)
    assert [result.message for result in results if not (result.ok and result.checked)] == []


def _random_programs(made: template.AmpereGemm, count: int) -> list[GeneratedProgram]:
    rng = random.Random(0)
    programs: list[GeneratedProgram] = []
    while len(programs) < count:
        try:
            programs.append(made.generate({p.name: rng.choice(p.domain) for p in made.parameters}))
        except errors.DecisionError:
            continue
    return programs
