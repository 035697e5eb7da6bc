"""Programs of bfloat16 on a CPU: what a `Let` binds, vectors, NaN of any bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from felix.builder import preparation
from felix.tir import bfloat16

N = 64


def _inputs() -> torch.Tensor:
    x = torch.randn(N, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[:4] = torch.tensor([math.nan, math.inf, -math.inf, 100.0])
    x.view(torch.int16)[4:6] = torch.tensor([-1, 0x7F81], dtype=torch.int16)  # other NaNs
    return x


def _wide(value: Any) -> Any:
    return value.astype("float32")


#: What a program computes of an element, and of a tensor.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "moved": (lambda x: x, lambda x: x),
    "exp": (lambda x: tirx.exp(_wide(x)), lambda x: x.float().exp()),
    "narrow exp": (tirx.exp, lambda x: x.float().exp()),
    "sigmoid": (lambda x: tirx.sigmoid(_wide(x)), lambda x: x.float().sigmoid()),
    "sum": (
        lambda x: tirx.exp(_wide(x * x + x)),
        lambda x: (x.float() * x.float() + x.float()).exp(),
    ),
    "largest": (
        lambda x: tirx.max(x * tirx.const(2.0, "bfloat16"), x),
        lambda x: torch.maximum(2 * x.float(), x.float()),
    ),
    "comparison": (
        lambda x: tirx.Select(x > tirx.const(0.5, "bfloat16"), _wide(x), tirx.exp(_wide(x))),
        lambda x: torch.where(x > 0.5, x.float(), x.float().exp()),
    ),
    "bits": (
        lambda x: tirx.reinterpret("bfloat16", tirx.reinterpret("int16", -x)),
        lambda x: -x.float(),
    ),
}


@tvm.instrument.pass_instrument
class _Vectors:
    """Whether TVM's vectorizer left vectors."""

    def __init__(self) -> None:
        self.are_left = False

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name.endswith("VectorizeLoop"):
            self.are_left = "T.Ramp(" in str(mod)


def _run(
    mod: tvm.IRModule, x: torch.Tensor, shape: tuple[int, ...], is_vectorized: bool = False
) -> torch.Tensor:
    out, vectors = torch.zeros(shape, dtype=x.dtype), _Vectors()
    with tvm.transform.PassContext(instruments=[vectors]):
        built = tvm.tirx.build(preparation.prepared(mod), "llvm")
    built["main"](tvm.runtime.from_dlpack(x), tvm.runtime.from_dlpack(out))
    assert vectors.are_left == is_vectorized
    return out


def _of_elements(
    of_element: Callable[[Any], Any], dtype: str, is_vectorized: bool
) -> tvm.IRModule:
    a = te.placeholder((N,), dtype, "A")
    b = te.compute((N,), lambda i: of_element(a[i]).astype(dtype), name="B")
    schedule = Schedule(te.create_prim_func([a, b]))
    if is_vectorized:
        (loop,) = schedule.get_loops(schedule.get_sblock("B"))
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
    return schedule.mod


def _assert_agrees(out: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(out, expected.bfloat16(), rtol=0.01, atol=0, equal_nan=True)


@pytest.mark.parametrize("is_vectorized", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elements_are_right(name: str, is_vectorized: bool) -> None:
    of_element, of_tensor = FUNCTIONS[name]
    x, mod = _inputs(), _of_elements(of_element, "bfloat16", is_vectorized)
    _assert_agrees(_run(mod, x, (N,), is_vectorized), of_tensor(x))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_maxima_that_keep_nan_are_vectors(dtype: str) -> None:
    x = _inputs().to(getattr(torch, dtype))
    mod = _of_elements(lambda x: tirx.max(x * x, x + x), dtype, is_vectorized=True)
    result = _run(mod, x, (N,), is_vectorized=True)
    torch.testing.assert_close(result, torch.maximum(x * x, x + x), equal_nan=True)


def test_what_is_between_is_float32() -> None:
    a = te.placeholder((N // 8, 8), "bfloat16", "A")
    double = te.compute(a.shape, lambda i, j: a[i, j] * tirx.const(2.0, "bfloat16"), name="D")
    axis = te.reduce_axis((0, 8))
    total = te.compute((N // 8,), lambda i: te.sum(_wide(double[i, axis]), axis=axis), name="T")
    out = te.compute((N // 8,), lambda i: tirx.exp(total[i]).astype("bfloat16"), name="B")
    mod = tvm.IRModule({"main": te.create_prim_func([a, out])})
    x = _inputs().view(-1, 8)
    _assert_agrees(_run(mod, x, (N // 8,)), (2 * x.float()).sum(1).exp())
    between = bfloat16.written_out(mod["main"]).body.block.alloc_buffers
    assert {str(each.dtype) for each in between} == {"float32"}


def test_a_parameter_accumulates() -> None:
    a = te.placeholder((N // 8, 8), "bfloat16", "A")
    axis = te.reduce_axis((0, 8))
    b = te.compute((N // 8,), lambda i: te.max(a[i, axis], axis=axis), name="B")
    x = _inputs().view(-1, 8)
    mod = tvm.IRModule({"main": te.create_prim_func([a, b])})
    _assert_agrees(_run(mod, x, (N // 8,)), x.float().amax(1))


def test_other_programs_stay() -> None:
    a = te.placeholder((N,), "float32", "A")
    func = te.create_prim_func([a, te.compute((N,), lambda i: a[i] * 2.0, name="B")])
    assert bfloat16.written_out(func).same_as(func)
