"""Schedules are right on a GPU: row chains, groups of rows, much shared memory, narrow types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm

import felix
from felix import workloads
from felix.builder import build, task_program
from felix.cli.comparison import torch_child
from felix.runner.checking import reference
from felix.space.trace_sketch import TraceSketch
from felix.task import Task
from felix.workloads import catalogue, torch_forms
from tests.support import row_chains
from tests.support.cuda import on_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1536, 128), (197, 768), (100, 4096), (64, 61)])
@pytest.mark.parametrize("name", row_chains.PROGRAMS)
def test_random_schedules_of_row_chains_are_right(
    name: str, shape: tuple[int, int], dtype: str
) -> None:
    task = row_chains.PROGRAMS[name](*shape, "cuda", dtype)
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "row_chain")
    mods = [sketch.schedule(row).mod for row in sketch.sample(16, seed=3)]
    on_gpu.measured(task, mods)


# Kernels with more than 48 KiB of shared memory on a GPU: measured, compiled and shipped.

STATIC_BYTES = 48 * 1024


def _large(sketch: TraceSketch, n: int) -> list[tvm.IRModule]:
    """Schedules with more than the static limit, the one that needs most first."""
    rows = sketch.sample(200, seed=1)
    used = sketch.formulas.shared_bytes(rows)
    order = [i for i in np.argsort(-used) if used[i] > STATIC_BYTES][:n]
    assert len(order) == n
    return [sketch.schedule(rows[i]).mod for i in order]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_are_right_in_every_sketch(dtype: str) -> None:
    task = workloads.gemm(512, 512, 512, dtype=dtype, target="cuda")
    mods = [mod for sketch in felix.trace_sketches(task) for mod in _large(sketch, 3)]
    on_gpu.measured(task, mods)


def test_a_convolution_is_right() -> None:
    task: Task = workloads.conv2d(1, 28, 28, 128, 128, 3, padding=1, target="cuda")
    mods = [mod for sketch in felix.trace_sketches(task)[:3] for mod in _large(sketch, 2)]
    on_gpu.measured(task, mods)


def test_what_ships_runs_by_tvm_s_runtime() -> None:
    task = workloads.gemm(256, 256, 256, target="cuda")
    (mod,) = _large(felix.trace_sketches(task)[-1], 1)
    rng = np.random.default_rng(0)
    a, b = (rng.random((256, 256), dtype=np.float32) for _ in range(2))
    tensors = [tvm.runtime.tensor(x, tvm.cuda(0)) for x in (a, b, np.zeros_like(a))]
    build.module(mod, task.target)["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), a @ b, rtol=1e-4)


# ---------------------------------------------------------------- types of 8 and 16 bits


#: Products that PyTorch has calls for on a GPU.
PRODUCTS = (
    "gemm:128,192,256,dtype=bfloat16,epilogue=bias+gelu",
    "gemm:128,192,256,dtype=bfloat16,out_dtype=float32,epilogue=bias",
    "gemm:64,48,80,dtype=float16,out_dtype=float32,batch=3",
    "gemm:128,192,256,dtype=int8,epilogue=bias+relu",
    "gemm:128,192,256,dtype=int8,transpose_b=true",
    "gemm:128,192,4096,dtype=float8_e4m3fn,epilogue=bias",
    "gemm:128,192,4096,dtype=float8_e4m3fn,transpose_a=true,transpose_b=true,out_dtype=float32",
)


#: Rows of a part of a warp, of a warp and of several warps.
ROW_GROUPS = (
    "softmax:1536x128",
    "softmax:12x197x197",
    "layer_norm:394x768",
    "rms_norm:2364x96",
    "reduce:12x200x197,axes=2,kind=max",
    "softmax:1536x128,dtype=float16",
)


@pytest.mark.parametrize(
    "text",
    [
        *PRODUCTS[:6],
        "gemm:128,96,64,epilogue=bias+relu",
        "conv2d:1,14,14,32,32,3,padding=1",
        "layer_norm:128x768",
        "reduce:1000003",
        "elementwise:197x3072,ops=add@1+gelu",
        *ROW_GROUPS,
        "gemm:47,49,51,dtype=float8_e5m2,out_dtype=float16",
        "conv2d:1,14,14,32,48,3,padding=1,dtype=bfloat16",
        "conv2d:1,14,14,32,48,3,padding=1,dtype=int8,epilogue=bias",
        "conv2d:1,14,14,32,48,3,padding=1,dtype=float8_e4m3fn,out_dtype=float32",
        "pool2d:1,28,28,32,3,padding=1,dtype=int8",
        "softmax:96x197,dtype=bfloat16",
    ],
)
def test_random_schedules_are_right(text: str) -> None:
    task = felix.workloads.parse(text, target="cuda")
    schedules = [
        sketch.schedule(row).mod
        for sketch in felix.trace_sketches(task)
        for row in sketch.sample(24 if sketch.variant.name == "row_groups" else 6, seed=3)
    ]
    on_gpu.measured(task, schedules)


@pytest.mark.parametrize("text", PRODUCTS)
def test_pytorch_agrees_within_the_tolerance(text: str) -> None:
    """Its kernels are of tensor cores, which the tolerance allows for."""
    task = felix.workloads.parse(text, target="cuda")
    form = torch_forms.form(*catalogue.parse_params(text))
    args = task_program.arguments(task.mod)
    torch_child.use_full_precision()
    output = form.call(*torch_child.random_inputs(form, args, "cuda")).cpu()
    (expected,) = task_program.on_cpu(task.mod, task.target, args)(0, False).values()
    assert output.dtype == torch_forms.tensor(expected).dtype
    wide = torch.int32 if output.dtype == torch.int32 else torch.float32
    got = output.to(wide).numpy().astype(expected.dtype)
    assert reference.mismatch(got, expected, task_program.tolerance(task.mod)) is None
