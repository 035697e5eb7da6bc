"""Roundings to 16 bits that nothing drops are numpy's, and are told from other expressions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from felix.tir import rounding

TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
N = 1 << 14


def values() -> np.ndarray:
    """Random bits, so subnormals, infinities and NaN are among them; and ties."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, N - 4096, dtype=np.uint32)
    ties = (rng.integers(0, 1 << 16, 2048, dtype=np.uint32) << 16) + 0x8000
    near = rng.normal(size=2048).astype(np.float32)
    return np.concatenate([bits.view(np.float32), ties.view(np.float32), near])


@pytest.mark.parametrize("is_vectorized", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_round_trip_is_numpys(dtype: str, is_vectorized: bool) -> None:
    x = te.placeholder((N,), "float32", "x")
    y = te.compute((N,), lambda i: rounding.rounded(x[i], dtype).astype("float32"), "y")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    if is_vectorized:
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
    given, out = values(), tvm.runtime.tensor(np.zeros(N, "float32"))
    tvm.tirx.build(schedule.mod, "llvm")["main"](tvm.runtime.tensor(given), out)
    with np.errstate(all="ignore"):
        expected = given.astype(TYPES[dtype]).astype(np.float32)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_rounding_is_known_again(dtype: str) -> None:
    x = te.placeholder((N,), "float32", "x")
    y = te.compute((N,), lambda i: rounding.rounded(x[i] * tirx.const(2.0), dtype), "y")
    value = te.create_prim_func([x, y]).body.block.body.body.block.body.value
    source = rounding.source(value)
    assert type(source).__name__ == "Mul"
    assert rounding.source(source) is None
    assert rounding.source(tirx.Cast(dtype, source)) is None
