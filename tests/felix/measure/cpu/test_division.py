"""Divisions of integers that would trap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from felix.measure import build, task_program
from felix.measure.checking import reference
from felix.measure.cpu import preparation

N = 32
TARGET = tvm.target.Target("llvm")


def _mapped(
    function: Callable[..., Any], dtype: str = "int32", names: tuple[str, ...] = ("n", "d")
) -> tvm.IRModule:
    tensors = [te.placeholder((N,), dtype, name) for name in names]
    y = te.compute((N,), lambda i: function(*(each[i] for each in tensors)), "y")
    return tvm.IRModule({"main": te.create_prim_func([*tensors, y])})


def _run(mod: tvm.IRModule, *values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    tensors = [*map(tvm.runtime.tensor, values), tvm.runtime.empty((N,), str(values[0].dtype))]
    build.module(mod, TARGET)["main"](*tensors)
    computed: np.ndarray[Any, Any] = tensors[-1].numpy()
    return computed


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    ("operation", "truth"),
    [
        (tirx.floordiv, np.floor_divide),
        (tirx.floormod, np.mod),
        (tirx.truncmod, np.fmod),
        (tirx.truncdiv, lambda n, d: np.trunc(n / d)),
    ],
)
def test_nothing_traps_and_other_quotients_stay(operation: Any, truth: Any, dtype: str) -> None:
    generator = np.random.default_rng(0)
    low = 0 if dtype == "uint8" else -9
    n, d = (generator.integers(low, 9, N).astype(dtype) for _ in range(2))
    d[0] = 0
    n[1], d[1] = np.iinfo(dtype).min, np.iinfo(dtype).max if dtype == "uint8" else -1
    computed = _run(_mapped(operation, dtype), n, d)
    if dtype != "uint8":  # the quotient wraps around
        assert computed[1] == (0 if "mod" in operation.__name__ else n[1])
    n[1], d[1], computed[1] = 0, 1, 0
    is_defined = d != 0
    expected = truth(n[is_defined], d[is_defined])
    np.testing.assert_array_equal(computed[is_defined], expected.astype(dtype))


def test_constants_and_floats_stay() -> None:
    for mod in (
        _mapped(lambda n, d: tirx.floordiv(n, 7)),
        _mapped(lambda n, d: n / d, "float32"),
    ):
        assert preparation.guarded(mod) is mod


def test_a_divisor_is_drawn_from_1_on() -> None:
    mod = _mapped(lambda n, d, k: tirx.floordiv(n, d * d) + k, names=("n", "d", "k"))
    args = task_program.arguments(mod)
    assert [each.name for each in args if each.is_divisor] == ["d"]
    n, d, _, _ = reference.inputs(args, 0, positive=False)
    assert n.min() < 0 < d.min()


def test_all_inputs_are_divisors_where_a_result_is() -> None:
    n, d = (te.placeholder((N,), "int32", name) for name in "nd")
    sums = te.compute((N,), lambda i: d[i] + 1, "sums")
    y = te.compute((N,), lambda i: tirx.floormod(n[i], sums[i]), "y")
    mod = tvm.IRModule({"main": te.create_prim_func([n, d, y])})
    args = task_program.arguments(mod)
    assert [each.name for each in args if each.is_divisor and each.is_input] == ["n", "d"]


def test_a_reference_with_a_divisor_of_0_does_not_end_the_process() -> None:
    mod = _mapped(lambda n, d: tirx.floordiv(n, d - 1))
    args = task_program.arguments(mod)
    assert (reference.inputs(args, 0, positive=False)[1] == 1).any()
    task_program.on_cpu(mod, TARGET, args)(0, False)


def test_a_result_of_a_parameters_name_is_none() -> None:
    n, d = (te.placeholder((N,), "int32", name) for name in "nd")
    squares = te.compute((N,), lambda i: n[i] * n[i] + 1, name="d")
    out = te.compute((N,), lambda i: tirx.floordiv(d[i], squares[i]), name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([n, d, out])})
    args = task_program.arguments(mod)
    assert [each.is_divisor for each in args] == [True] * 3
