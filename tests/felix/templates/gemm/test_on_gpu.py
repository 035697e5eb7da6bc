"""Kernels of every template on a GPU: random decisions for several problems, against the
reference."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import tvm
from tvm import te, tirx, topi

from felix import target, workloads
from felix.builder import build
from felix.task import Task
from felix.templates import registry
from felix.templates.registry import Generator
from felix.tir import rounding
from tests.support.templates import attention_programs, on_gpu, recognised, transposed_programs
from tests.support.templates.transposed_programs import Dimension

pytestmark = pytest.mark.gpu

GENERATORS = dict(zip(("hopper", "mma", "threads"), registry.GENERATORS, strict=True))
GENERATORS["few_rows"] = registry.BESIDE

WORKLOADS = {
    "hopper": (
        "gemm:256,256,256,dtype=float16",
        "gemm:197,768,768,epilogue=bias+gelu+residual,dtype=float16",
        "gemm:33,65,129,batch=3,transpose_a=true,dtype=float16",
        "gemm:1,4096,1024,transpose_b=true,epilogue=bias,dtype=float16",
        "gemm:130,200,264,transpose_b=true,epilogue=bias,allow_tf32=true",
        "conv2d:2,14,14,128,256,3,padding=1,dtype=float16",
        "conv2d:3,28,28,128,64,1,stride=2,dtype=float16",
        "conv2d:2,15,15,72,40,3,padding=1,stride=2,dtype=float16",
        "conv2d:1,64,64,3,64,7,padding=3,stride=2,dtype=float16",
        "conv2d:2,20,17,96,64,3,padding=2x1,stride=1x2,dilation=2x3,dtype=float16",
        "conv2d:1,7,7,256,512,3,padding=1,dtype=float16",
        "conv2d:1,14,14,64,96,3,padding=1,groups=2,dtype=float16",
        "conv2d:3,14,14,64,64,3,padding=1,stride=2,groups=4,dtype=float16",
        "conv2d:3,15,15,64,96,3,padding=1,stride=2,layout=NCHW,dtype=float16",
        "conv2d:1,64,64,3,64,7,padding=3,stride=2,layout=NCHW,dtype=float16",
        "conv1d:3,333,80,96,5,padding=4,stride=3,dilation=2,dtype=float16",
        "conv3d:2,8,8,8,64,64,3,padding=1,dtype=float16",
        "conv3d:1,9,14,14,32,48,3,padding=1,stride=1x2x2,dtype=float16",
    ),
    "mma": (
        "gemm:256,256,256,dtype=bfloat16",
        "gemm:100,200,328,transpose_b=true,dtype=int8",
        "gemm:197,768,768,epilogue=bias+gelu+residual,dtype=float16",
        "gemm:33,65,129,batch=3,transpose_a=true,dtype=float16",
        "gemm:1,4096,1024,transpose_b=true,epilogue=bias,dtype=float16",
        "gemm:130,200,264,transpose_b=true,epilogue=bias,allow_tf32=true",
        "gemm:130,200,263,transpose_a=true,batch=3,dtype=int8",
        "gemm:97,200,250,epilogue=bias+relu,allow_tf32=true",
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
        "conv_transpose2d:8,1,1,100,512,stride=1,padding=0,layout=NCHW,dtype=bfloat16",
        "conv_transpose2d:8,4,4,512,256,layout=NCHW,epilogue=bias+relu,dtype=bfloat16",
        "conv_transpose2d:8,32,32,64,3,layout=NCHW,dtype=float16",
        "conv_transpose2d:8,16,16,128,64,epilogue=bias+relu,dtype=float16",
        "conv_transpose2d:2,28,28,64,64,3,output_padding=1,epilogue=bias+residual,dtype=bfloat16",
        "conv_transpose2d:2,17,19,20,36,5,stride=3,dtype=float16",
        "conv_transpose2d:4,28,28,64,32,2,padding=0,dtype=bfloat16",
        "conv_transpose2d:1,15,15,32,24,3,stride=2,dtype=bfloat16",
    ),
    "threads": (
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
    ),
    "few_rows": (
        "gemm:1,768,3072,transpose_b=true,dtype=bfloat16",
        "gemm:1,4096,1024,transpose_b=true,epilogue=bias",
        "gemm:7,1000,333,transpose_b=true,epilogue=bias+relu,dtype=float16",
        "gemm:2,197,64,batch=12,transpose_b=true,dtype=bfloat16",
        "gemm:8,512,2048,transpose_b=true,dtype=int8",
        "gemm:4,512,2048,transpose_b=true,dtype=float8_e4m3fn,out_dtype=bfloat16",
    ),
}

TRANSPOSED: dict[str, Callable[[], tvm.IRModule]] = {
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


@pytest.mark.parametrize(
    "generator, spec", [(name, spec) for name, specs in WORKLOADS.items() for spec in specs]
)
def test_random_decisions_compute_the_workload(generator: str, spec: str) -> None:
    _check(GENERATORS[generator], workloads.parse(spec, "cuda"))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("generator", ["hopper", "mma"])
def test_random_decisions_compute_random_convolutions(generator: str, seed: int) -> None:
    rng = random.Random(seed)
    while True:
        n_axes, sizes, options = recognised.random_convolution(rng)
        task = recognised.convolution(n_axes, *sizes, target="cuda", **options)
        if GENERATORS[generator].unsuited(recognised.problem(task.mod)) is None:
            break
    _check(GENERATORS[generator], task)


@pytest.mark.parametrize("which", ["scores", "mixed"])
@pytest.mark.parametrize("rows, dim", [(128, 64), (197, 40), (33, 20)])
@pytest.mark.parametrize("generator", ["hopper", "mma", "threads"])
def test_random_decisions_compute_attention(
    generator: str, rows: int, dim: int, which: str
) -> None:
    """Operands inside a tensor, two batch axes, and a causal mask of the scores."""
    dtype = "float32" if generator == "threads" else "float16"
    mod = attention_programs.fused_qkv(which, batch=3, rows=rows, heads=5, dim=dim, dtype=dtype)
    task = Task.from_prim_func(mod["main"], "cuda", name=f"attention_{which}")
    _check(GENERATORS[generator], task)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_random_decisions_compute_transposed_convolutions(name: str) -> None:
    task = Task.from_prim_func(TRANSPOSED[name]()["main"], "cuda", name=name)
    _check(GENERATORS["mma"], task)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("generator", GENERATORS)
def test_roundings_of_the_model_and_nan_are_kept(generator: str, dtype: str) -> None:
    """Sums are whole, so exact until they are rounded; two operands are no numbers."""
    kind, rows = "float32" if generator == "threads" else "float16", 5
    x = te.placeholder((rows, 264), kind, "x")
    w = te.placeholder((72, 264), kind, "w")
    y = topi.nn.dense(x, w, out_dtype="float32")
    rounded = te.compute(y.shape, lambda *i: rounding.rounded(y[i], dtype), "rounded")
    bound = topi.nn.relu(topi.cast(rounded, "float32"))
    mod = recognised.program(x, w, topi.minimum(bound, tirx.const(9000.0, "float32")))
    task = Task.from_prim_func(mod["main"], "cuda", name="rounded")
    a, b = torch.randint(0, 9, (rows, 264)), torch.randint(0, 9, (72, 264))
    a, b = (each.to(getattr(torch, kind)).cuda() for each in (a, b))
    a[1, 7], b[9, 200] = torch.nan, torch.nan
    exact = (a.double() @ b.double().T).float().to(getattr(torch, dtype)).float()
    arch = str(task.target.attrs["arch"])
    problem, machine = recognised.problem(task.mod), target.hardware(task.target)
    for template in GENERATORS[generator].templates(problem, machine, arch):
        for program in on_gpu.random_programs(template):
            out = torch.zeros(rows, 72, device="cuda")
            build.module_of_task(program, task)["main"](*map(tvm.runtime.from_dlpack, (a, b, out)))
            torch.testing.assert_close(out, exact.clamp(0, 9000), rtol=0, atol=0, equal_nan=True)


def _check(generator: Generator, task: Task) -> None:
    arch = str(task.target.attrs["arch"])
    if not generator.runs_on(arch):
        pytest.skip(f"has no kernels for {arch}")
    problem = recognised.problem(task.mod)
    assert generator.unsuited(problem) is None
    on_gpu.check(task, generator.templates(problem, target.hardware(task.target), arch))
