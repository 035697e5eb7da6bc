"""Types of 8 and 16 bits on a GPU: candidates are right, and so is what PyTorch calls for them."""

from __future__ import annotations

import pytest
import torch
import tvm

import felix
from felix.cli.comparison import torch_child
from felix.measure import task_program
from felix.measure.checking import reference
from felix.measure.pool import local
from felix.workloads import catalogue, torch_forms

HAS_GPU = tvm.runtime.device("cuda", 0).exist
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU"),
]
PATIENT = local.LocalOptions(builders=4, build_timeout_s=60.0, max_source_bytes=1 << 30)
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


@pytest.mark.parametrize(
    "text",
    [
        *PRODUCTS[:6],
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
        for row in sketch.sample(6, 3)
    ]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(schedules)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]


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
