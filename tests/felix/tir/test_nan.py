"""Maxima and minima keep NaN, for CPUs in the program and for CUDA in its source."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from felix.builder import preparation
from felix.runner.cuda import nvrtc
from felix.tir import nan

N = 64


def program(dtype: str, has_number: bool, is_vectorized: bool) -> tvm.IRModule:
    """max(min(x, high), y), high a tensor or a number."""
    x, y, high = (te.placeholder((N,), dtype, name) for name in ("x", "y", "high"))

    def value(i: tirx.Var) -> tvm.ir.Expr:
        bound = tirx.const(0.5, dtype) if has_number else high[i]
        return tirx.max(tirx.min(x[i], bound), y[i])

    out = te.compute((N,), value, "out")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y, high, out])}))
    (loop,) = schedule.get_loops(schedule.get_sblock("out"))
    if is_vectorized:
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
    return schedule.mod


@pytest.mark.parametrize("is_vectorized", [False, True])
@pytest.mark.parametrize("has_number", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_extremes_of_a_cpu_are_those_of_numpy(
    dtype: str, has_number: bool, is_vectorized: bool
) -> None:
    rng = np.random.default_rng(0)
    x, y, high = (rng.normal(size=N).astype(dtype) for _ in range(3))
    x[3:20], y[9:30], high[15:40] = np.nan, np.nan, np.nan
    x[50], y[51] = np.inf, -np.inf
    tensors = [tvm.runtime.tensor(each) for each in (x, y, high, np.zeros(N, dtype))]
    mod = preparation.prepared(program(dtype, has_number, is_vectorized))
    tvm.tirx.build(mod, "llvm")["main"](*tensors)
    bound = np.array(0.5, dtype) if has_number else high
    np.testing.assert_array_equal(tensors[3].numpy(), np.maximum(np.minimum(x, bound), y))


def test_a_number_that_is_nan_is_the_result_and_integers_stay() -> None:
    x = tirx.Var("x", "float32")
    n = tirx.Var("n", "int32")
    y = tirx.decl_buffer((1,), "float32")
    body = tirx.BufferStore(y, tirx.max(x, tirx.const(float("nan"), "float32")), [0])
    kept = nan.keeping(tirx.PrimFunc([x, y], body))
    assert np.isnan(kept.body.value.value)
    of_integers = tirx.PrimFunc([n], tirx.Evaluate(tirx.max(n, tirx.const(3, "int32"))))
    assert nan.keeping(of_integers) is of_integers


SOURCE = """\
#include <cuda_fp16.h>
__device__ half max(half a, half b) { return __hgt(a, b) ? a : b; }
extern "C" __global__ void f(float* x, half* h, double* d, int* i, signed char* c) {
  x[0] = max(x[1], min(x[2], 0.5f));
  h[0] = max(h[1], h[2]);
  d[0] = max(d[1], d[2]);
  i[0] = min(i[1], 3);
  c[0] = min(c[1] + c[2], c[3]);
  i[1] = h_max(i[0]);
}
"""


def test_the_source_of_a_gpu_calls_functions_that_keep_nan() -> None:
    source = SOURCE.replace("  i[1] = h_max(i[0]);\n", "")
    made = nan.in_cuda(source)
    kernels = made[made.index('extern "C"') :]
    assert "max_or_nan(x[1], min_or_nan(x[2], 0.5f))" in kernels and " max(" not in kernels
    for arch in ("sm_75", "sm_80", "sm_90"):
        ptx = nvrtc.compile_ptx(made, arch, headers=True)
        assert ("max.NaN.f32" in ptx and "max.NaN.f16" in ptx) == (arch != "sm_75")
    assert "h_max(i[0])" in nan.in_cuda(SOURCE)
    plain = source[: source.index("  x[0]")] + "}\n"
    assert nan.in_cuda(plain) == plain
