"""exp written out, against float64: over the whole range, and in what calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx

from felix import workloads
from felix.measure import build
from felix.measure.cpu import preparation

N = 1 << 14
TARGET = tvm.target.Target("llvm")


def _mapped(function: Callable[[Any], Any], dtype: str = "float32") -> tvm.IRModule:
    x = te.placeholder((N,), dtype, "x")
    y = te.compute((N,), lambda i: function(x[i]), "y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


def _run(mod: tvm.IRModule, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x, y = tvm.runtime.tensor(values), tvm.runtime.empty((N,), str(values.dtype))
    build.module(mod, TARGET)["main"](x, y)
    computed: np.ndarray[Any, Any] = y.numpy()
    return computed


def _n_calls(mod: tvm.IRModule, name: str) -> int:
    return mod.script().count(f"T.{name}(")


@pytest.fixture(scope="module")
def exp() -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    function = build.module(_mapped(tirx.exp), TARGET)["main"]

    def run(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        padded = np.zeros(N, np.float32)
        padded[: len(values)] = values
        x, y = tvm.runtime.tensor(padded), tvm.runtime.empty((N,), "float32")
        function(x, y)
        computed: np.ndarray[Any, Any] = y.numpy()[: len(values)]
        return computed

    return run


def _errors(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In units in the last place of the float32 nearest to the truth."""
    truth = np.exp(x.astype(np.float64))
    unit = np.spacing(truth.astype(np.float32)).astype(np.float64)
    return np.abs(y.astype(np.float64) - truth) / unit


def test_within_one_unit_in_the_last_place(exp: Any) -> None:
    x = np.linspace(-104.5, 88.7228, N, dtype=np.float32)
    assert _errors(x, exp(x)).max() < 1.0
    near = np.linspace(-1.0, 1.0, N, dtype=np.float32)
    assert _errors(near, exp(near)).max() < 1.0


@given(st.integers(0, 2**32 - 1))
def test_any_number(exp: Any, bits: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = np.exp(x.astype(np.float64)).astype(np.float32)
    (y,) = exp(x)
    if np.isfinite(truth[0]):
        assert _errors(x, np.array([y]))[0] < 1.0
    else:
        np.testing.assert_equal(y, truth[0])


def test_ends_of_the_range(exp: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, 88.73, -104.0], np.float32)
    expected = [np.inf, 0.0, np.nan, 1.0, 1.0, np.inf, 0.0, np.inf, 0.0]
    np.testing.assert_equal(exp(x), np.array(expected, np.float32))


def test_no_function_is_called_for_each_element() -> None:
    written = preparation.written_out(_mapped(tirx.exp))
    assert _n_calls(_mapped(tirx.exp), "exp") == 1 and _n_calls(written, "exp") == 0
    nested = preparation.written_out(_mapped(lambda x: tirx.exp(-tirx.exp(x))))
    assert _n_calls(nested, "exp") == 0


def test_nested_and_in_a_sigmoid() -> None:
    x = np.linspace(-20.0, 20.0, N, dtype=np.float32)
    nested = _run(_mapped(lambda x: tirx.exp(-tirx.exp(x))), x)
    np.testing.assert_allclose(
        nested, np.exp(-np.exp(x.astype(np.float64))), rtol=1e-4, atol=1e-38
    )
    sigmoid = _run(_mapped(tirx.sigmoid), x)
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=3e-7)


def test_other_types_stay() -> None:
    wide = _mapped(tirx.exp, "float64")
    assert _n_calls(preparation.written_out(wide), "exp") == 1
    x = np.linspace(-700.0, 700.0, N)
    np.testing.assert_allclose(_run(wide, x), np.exp(x), rtol=1e-15)


def test_a_softmax() -> None:
    task = workloads.parse("softmax:16x100", target=TARGET)
    values = np.random.default_rng(0).normal(0, 30, (16, 100)).astype(np.float32)
    x, y = tvm.runtime.tensor(values), tvm.runtime.empty((16, 100), "float32")
    build.module(task.mod, TARGET)["main"](x, y)
    powers = np.exp(values.astype(np.float64) - values.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_as_a_script() -> None:
    """`schedule.py` of an artifact is what was compiled."""
    task = workloads.parse("softmax:16x100", target=TARGET)
    prepared = build.prepared(task.mod, TARGET)
    assert _n_calls(task.mod, "exp") == 1 and _n_calls(prepared, "exp") == 0
    tvm.ir.assert_structural_equal(tvm.script.from_source(prepared.script()), prepared)
