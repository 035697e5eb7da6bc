"""Tolerances let right kernels pass and catch wrong ones: simulated in numpy, K = 4096."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from felix import workloads
from felix.builder import task_program
from felix.runner.checking import reference

Array = NDArray[Any]
M, N, K = 16, 48, 4096
#: Of the terms that a kernel leaves out: one step of its loop over k.
SLICE = 64


def _factors(dtype: str) -> tuple[Array, Array]:
    """A and B as the correctness check draws them."""
    task = workloads.gemm(M, N, K, dtype=dtype, target="cuda")
    a, b, _ = reference.inputs(task_program.arguments(task.mod), 0, positive=False)
    return a, b


def _tolerance(dtype: str, out_dtype: str | None) -> float:
    task = workloads.gemm(M, N, K, dtype=dtype, out_dtype=out_dtype, target="cuda")
    return task_program.tolerance(task.mod)


def _in_order(a: Array, b: Array) -> Array:
    """Sums in float32, one term after the other, as the reference computes them."""
    total = np.zeros((M, N), np.float32)
    for k in range(K):
        total += a[:, k : k + 1].astype(np.float32) * b[k].astype(np.float32)
    return total


def _truncated(values: Array, ulp: Array) -> Array:
    return np.trunc(values / ulp) * ulp


def _on_tensor_cores(a: Array, b: Array, terms: int, bits: int) -> Array:
    """Products of `terms` at once, added with so many bits below the largest one's, towards 0."""
    total = np.zeros((M, N))
    for k in range(0, K, terms):
        products = a[:, k : k + terms, None].astype(np.float64) * b[None, k : k + terms]
        largest = np.maximum(np.abs(products).max(axis=1), np.abs(total))
        ulp = 2.0 ** (np.floor(np.log2(largest)) - bits)
        total = _truncated(products, ulp[:, None]).sum(axis=1) + _truncated(total, ulp)
        total = _truncated(total, 2.0 ** (np.floor(np.log2(np.abs(total) + 1e-30)) - 23))
    return total.astype(np.float32)


def _split(a: Array, b: Array) -> Array:
    """Eight partial sums, added in float32."""
    parts = a.astype(np.float32).reshape(M, 8, -1), b.astype(np.float32).reshape(8, -1, N)
    return np.einsum("msk,skn->smn", *parts).sum(axis=0, dtype=np.float32)


KERNELS: dict[str, Callable[[Array, Array], Array]] = {
    "split": _split,
    "mma_16_bits": lambda a, b: _on_tensor_cores(a, b, terms=16, bits=24),
    "mma_float8": lambda a, b: _on_tensor_cores(a, b, terms=32, bits=13),
}


@pytest.mark.parametrize(
    ("kernel", "dtype", "out_dtype"),
    [
        ("split", "float32", None),
        ("split", "bfloat16", "bfloat16"),
        ("mma_16_bits", "bfloat16", "bfloat16"),
        ("mma_16_bits", "bfloat16", "float32"),
        ("mma_16_bits", "float16", "float16"),
        ("mma_float8", "float8_e4m3fn", "bfloat16"),
        ("mma_float8", "float8_e4m3fn", "float32"),
    ],
)
def test_a_right_kernel_passes_and_one_that_leaves_out_a_slice_does_not(
    kernel: str, dtype: str, out_dtype: str | None
) -> None:
    (a, b), relative = _factors(dtype), _tolerance(dtype, out_dtype)
    stored = reference.np_dtype(out_dtype or dtype)
    expected = _in_order(a, b).astype(stored)
    right = KERNELS[kernel](a, b)
    assert reference.mismatch(right.astype(stored), expected, relative) is None
    left_out = a[:, SLICE : 2 * SLICE].astype(np.float32) @ b[SLICE : 2 * SLICE].astype(np.float32)
    message = reference.mismatch((right - left_out).astype(stored), expected, relative)
    assert message is not None and int(message.split()[0]) > 0.3 * M * N


@pytest.mark.parametrize(("dtype", "out_dtype"), [("bfloat16", "float32"), ("float32", None)])
def test_one_term_that_is_missing_is_found_in_a_wide_output(
    dtype: str, out_dtype: str | None
) -> None:
    (a, b), relative = _factors(dtype), _tolerance(dtype, out_dtype)
    expected = _in_order(a, b)
    missing = expected - a[:, 5:6].astype(np.float32) * b[5].astype(np.float32)
    assert reference.mismatch(missing, expected, relative) is not None


def test_sums_kept_in_16_bits_are_wrong() -> None:
    """As they are where a kernel's accumulator is of the output's type."""
    a, b = _factors("bfloat16")
    total = np.zeros((M, N), ml_dtypes.bfloat16)
    for k in range(K):
        total += (a[:, k : k + 1].astype(np.float32) * b[k].astype(np.float32)).astype(total.dtype)
    expected = _in_order(a, b).astype(total.dtype)
    assert reference.mismatch(total, expected, _tolerance("bfloat16", None)) is not None


def test_integers_and_copies_are_exact() -> None:
    for text in ("gemm:8,8,64,dtype=int8", "reduce:8x8,axes=1,kind=max,dtype=int8"):
        assert task_program.tolerance(workloads.parse(text).mod) == 0.0


def test_the_padding_of_a_convolution_rounds_nothing() -> None:
    """Its copies are of 8 and 16 bits, but the sums and outputs of float32."""
    for dtype in ("bfloat16", "float8_e4m3fn"):
        text = f"conv2d:1,6,6,4,8,3,dtype={dtype},out_dtype=float32"
        plain, padded = (workloads.parse(text + more, "cuda").mod for more in ("", ",padding=1"))
        assert task_program.tolerance(padded) == task_program.tolerance(plain)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_tolerances_grow_with_the_sum(out_dtype: str) -> None:
    short, long = (
        task_program.tolerance(workloads.gemm(8, 8, k, dtype="bfloat16", out_dtype=out_dtype).mod)
        for k in (64, 16384)
    )
    assert short < long < (0.032 if out_dtype == "bfloat16" else 1.1e-4)


def test_bytes_take_all_their_values_where_nothing_overflows() -> None:
    a, b = _factors("int8")
    assert (a.min(), a.max(), b.min(), b.max()) == (-128, 127, -128, 127)
    long = workloads.gemm(1, 1, 2**16, dtype="int8")
    values = reference.inputs(task_program.arguments(long.mod), 0, positive=False)[0]
    assert (values.min(), values.max()) == (-8, 7)


def _in_tf32(values: Array) -> Array:
    """As tensor cores read float32: 13 bits of the mantissa dropped."""
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("positive", [False, True])
def test_tf32_passes_where_it_is_allowed_alone(positive: bool) -> None:
    plain = workloads.gemm(M, N, K, target="cuda")
    allowed = workloads.gemm(M, N, K, allow_tf32=True, target="cuda")
    a, b, _ = reference.inputs(task_program.arguments(plain.mod), 0, positive=positive)
    expected = _in_order(a, b)
    rounded = _on_tensor_cores(_in_tf32(a), _in_tf32(b), 8, 23)
    tolerance = task_program.tolerance(allowed.mod)
    assert 0.0039 < tolerance < 0.0045
    assert reference.mismatch(rounded, expected, tolerance) is None
    assert reference.mismatch(rounded, expected, task_program.tolerance(plain.mod)) is not None
    a[:, -SLICE:] = 0
    left_out = _on_tensor_cores(_in_tf32(a), _in_tf32(b), 8, 23)
    assert reference.mismatch(left_out, expected, tolerance) is not None


def test_other_programs_gain_no_tolerance_from_tf32() -> None:
    for text in ("reduce:64x4096,axes=1,kind=sum", "elementwise:64x64,ops=relu"):
        task = workloads.parse(text, "cuda")
        allowed = task_program.tolerance(task.allowing_tf32().mod)
        assert allowed == task_program.tolerance(task.mod)
