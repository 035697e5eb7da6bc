"""Scales of quantised products: programs, both kernels' text, what the fastest template does."""

from __future__ import annotations

import pathlib
import random

import numpy as np
import pytest

from benchmarks.support import fuzzing
from felix import target, workloads
from felix.measure import task_program
from felix.measure.checking import reference
from felix.measure.cuda.building import nvrtc
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from tests.support import share
from tests.support.templates import host_gpu

A100 = target.hardware(target.parse("cuda -arch sm_80"))
TEXTS = [
    "gemm:33,40,64,transpose_b=true,dtype=int8,epilogue=scale+bias+gelu",
    "gemm:17,24,64,batch=2,transpose_b=true,dtype=int8,epilogue=bias+scale+relu,out_dtype=float16",
    "gemm:33,40,96,transpose_b=true,dtype=int8,epilogue=scalar_scale,out_dtype=float32",
    "conv2d:1,5,6,16,24,3,padding=1,dtype=int8,epilogue=scale+bias+relu,out_dtype=float32",
    "conv2d:2,4,5,16,24,3,padding=1,groups=2,layout=NCHW,dtype=int8,epilogue=scale+residual",
    "conv_transpose2d:2,4,3,16,24,4,dtype=int8,epilogue=scalar_scale+scale+bias",
    "gemm:33,24,40,dtype=bfloat16,epilogue=scale+bias+gelu+scalar_scale",
]
FLOAT8 = [
    "gemm:33,40,64,transpose_b=true,dtype=float8_e4m3fn,epilogue=scalar_scale+scale+bias",
    "gemm:64,40,64,dtype=float8_e5m2,epilogue=scale,out_dtype=float16",
    "conv2d:2,8,9,16,24,3,padding=1,dtype=float8_e4m3fn,epilogue=scale+bias+relu",
]


@pytest.mark.parametrize("text", share.of(TEXTS, 4))
def test_text_of_a_kernel_computes_the_program(text: str, tmp_path: pathlib.Path) -> None:
    """With a split sum and without; `on_cpu` is what TVM builds of the program."""
    task = workloads.parse(text, "cuda -arch sm_80")
    problem = recognise(task.mod)
    assert isinstance(problem, GemmProblem) and template.unsuited(problem) is None
    made = template.AmpereGemm(problem, A100, "sm_80")
    args = task_program.arguments(task.mod)
    (expected,) = task_program.on_cpu(task.mod, task.target, args)(1, False).values()
    settings = fuzzing.legal(made, 200, random.Random(1))
    small = [each for each in settings if each[0]["warps_m"] * each[0]["warps_n"] <= 2]
    whole = next(program for values, program in small if values["split_k"] == 1)
    split = next((program for values, program in small if values["split_k"] > 1), whole)
    for number, program in enumerate((whole, split)):
        folder = tmp_path / str(number)
        folder.mkdir()
        library = host_gpu.build(program, problem, folder)
        arrays = reference.inputs(args, 1, positive=False)
        assert host_gpu.run(library, program, arrays, late=True) == 0
        limit = task_program.tolerance(task.mod)
        assert reference.mismatch(arrays[-1].reshape(expected.shape), expected, limit) is None


@pytest.mark.parametrize("text", share.of([*TEXTS, *FLOAT8], 5))
def test_templates_take_scales_and_compile(text: str) -> None:
    task = workloads.parse(text, "h200")
    templates, reasons = fuzzing.suited(task, target.hardware(task.target))
    names = {made.name for made in templates}
    assert "gemm-wgmma" in names or "transposed convolutions" in reasons[0]
    for made in templates:
        for _, program in fuzzing.legal(made, 1, random.Random(2)):
            assert nvrtc.compile_cubin(program.source, program.arch)


def test_inputs_of_a_float16_output_do_not_overflow() -> None:
    text = "gemm:64,64,512,dtype=int8,epilogue=scale,out_dtype={}"
    for out, is_full in (("float16", False), ("bfloat16", True)):
        args = task_program.arguments(workloads.parse(text.format(out)).mod)
        assert args[0].is_full_range is is_full
        task = workloads.parse(text.format(out))
        (values,) = task_program.on_cpu(task.mod, task.target, args)(0, False).values()
        assert np.isfinite(values.astype(np.float64)).all()
