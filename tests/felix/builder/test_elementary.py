"""Functions written out for a CPU: against float64 over all float32, and what they are at the
ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import s_tir, tirx

from felix.builder import build, preparation
from tests.felix.builder.test_preparation import TARGET, _mapped

Array = np.ndarray[Any, Any]

N = 1 << 18
ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 2.0**-126, 3e38, -3e38]
#: Where formulas change: limits of floats, halves, quarters of turns, powers.
TURNS = [0.5, -0.5, 89.2, -89.2, 89.5, -150.0, 2.0**25, 1.5707964, 3.1415927, 1e10, 1000.0, 8.0]

#: function -> its call, the truth, and its error in units of the last place.
FUNCTIONS: dict[str, tuple[Any, Any, float]] = {
    "exp": (tirx.exp, torch.exp, 1.0),
    "exp2": (tirx.exp2, torch.exp2, 2.0),
    "exp10": (tirx.exp10, lambda x: 10.0**x, 2.0),
    "erf": (tirx.erf, torch.erf, 6.0),
    "tanh": (tirx.tanh, torch.tanh, 7.0),
    "sinh": (tirx.sinh, torch.sinh, 2.0),
    "cosh": (tirx.cosh, torch.cosh, 3.0),
    "log": (tirx.log, torch.log, 1.0),
    "log2": (tirx.log2, torch.log2, 1.0),
    "log10": (tirx.log10, torch.log10, 1.0),
    "log1p": (tirx.log1p, torch.log1p, 2.0),
    "asinh": (tirx.asinh, torch.asinh, 3.0),
    "acosh": (tirx.acosh, torch.acosh, 3.0),
    "atanh": (tirx.atanh, torch.atanh, 3.0),
    "sin": (tirx.sin, torch.sin, 2.0),
    "cos": (tirx.cos, torch.cos, 2.0),
    "tan": (tirx.tan, torch.tan, 4.0),
    "asin": (tirx.asin, torch.asin, 3.0),
    "acos": (tirx.acos, torch.acos, 2.0),
    "atan": (tirx.atan, torch.atan, 2.0),
}
#: The same of float64.
DOUBLES: dict[str, tuple[Any, Any, float]] = {
    "sinh": (tirx.sinh, np.sinh, 3.0),
    "cosh": (tirx.cosh, np.cosh, 3.0),
    "asin": (tirx.asin, np.arcsin, 3.0),
    "acos": (tirx.acos, np.arccos, 2.0),
    "atan": (tirx.atan, np.arctan, 2.0),
}


def _inputs(seed: int, dtype: str = "float32") -> Array:
    """Any floats, many of usual sizes, and the ends."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 64, N // 2, np.uint64)
    any_bits = bits if dtype == "float64" else bits.astype(np.uint32)
    ends = np.array([*ENDS, *TURNS], dtype)
    usual = (3 * rng.standard_normal(N - N // 2 - len(ends))).astype(dtype)
    return np.concatenate([ends, usual, any_bits.view(dtype)])


def _computed(function: Callable[..., Any], *inputs: Array) -> Array:
    """What a loop of vectors computes."""
    dtype, names = str(inputs[0].dtype), ("x", "y")[: len(inputs)]
    schedule = s_tir.Schedule(_mapped(function, dtype, names, N))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 16])[1])
    tensors = [*map(tvm.runtime.tensor, inputs), tvm.runtime.empty((N,), dtype)]
    build.module(schedule.mod, TARGET)["main"](*tensors)
    computed: Array = tensors[-1].numpy()
    return computed


def _check(computed: Array, truth: Array, units: float) -> None:
    dtype = computed.dtype
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = truth.astype(dtype)
    least = np.finfo(dtype).tiny
    is_number = np.isfinite(nearest) & (np.abs(nearest) >= least)
    unit = np.spacing(np.abs(nearest[is_number])).astype(truth.dtype)
    assert (np.abs(computed[is_number] - truth[is_number]) / unit).max() < units
    rest = np.isfinite(nearest) & ~is_number
    np.testing.assert_allclose(computed[rest], nearest[rest], atol=1.02 * least)
    others = ~np.isfinite(nearest)
    np.testing.assert_array_equal(computed[others], nearest[others])


def _check_signs(computed: Array, truth: Array, is_checked: Array | bool = True) -> None:
    chosen = is_checked & ~np.isnan(computed)
    np.testing.assert_array_equal(np.signbit(computed[chosen]), np.signbit(truth[chosen]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_those_that_are_stated(name: str) -> None:
    function, right, units = FUNCTIONS[name]
    x = _inputs(seed=1)
    computed = _computed(function, x)
    truth = right(torch.from_numpy(x).double()).numpy()
    _check(computed, truth, units)
    _check_signs(computed, truth, (truth == 0.0) & (x == 0.0))


@pytest.mark.parametrize("name", DOUBLES)
def test_errors_of_doubles(name: str) -> None:
    function, right, units = DOUBLES[name]
    x = _inputs(seed=1, dtype="float64")
    x[N // 4 : N // 2] *= 100.0  # up to where sinh is infinite
    x[-N // 4 :] = np.linspace(-1.0, 1.0, N // 4)
    x[-4:] = 710.4, -710.4, 710.5, 1e300
    computed = _computed(function, x)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = right(x.astype(np.longdouble))
    _check(computed, truth, units)
    _check_signs(computed, truth)


def test_powers() -> None:
    x, y = _pairs([2.0, -2.0, 0.5, -0.5, 3.0, -3.0])
    y[N // 4 : N // 2] = np.round(y[N // 4 : N // 2])
    computed = _computed(tirx.power, x, y)
    truth = torch.pow(torch.from_numpy(x).double(), torch.from_numpy(y).double()).numpy()
    _check(computed, truth, 1.0)
    _check_signs(computed, truth)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_of_points(dtype: str) -> None:
    y, x = _pairs([3e38, 1e-45], dtype)
    computed = _computed(tirx.atan2, y, x)
    with np.errstate(invalid="ignore"):
        truth = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    _check(computed, truth, 3.0)
    _check_signs(computed, truth)


def _pairs(further: list[float], dtype: str = "float32") -> list[Array]:
    """Two inputs, begun by all pairs of the ends and further numbers."""
    inputs = [_inputs(seed, dtype) for seed in (2, 3)]
    numbers = np.array([*ENDS, *further], dtype)
    for values, grid in zip(inputs, np.meshgrid(numbers, numbers), strict=True):
        values[: grid.size] = grid.ravel()
    return inputs


@pytest.mark.parametrize("name", [*FUNCTIONS, "sigmoid"])
def test_no_function_of_the_library_is_called(name: str) -> None:
    mod = build.prepared(_mapped(getattr(tirx, name)), TARGET)
    text = tvm.tirx.build(mod, TARGET).inspect_source("ll")
    assert f"@llvm.{name}" not in text and f"@{name}f" not in text
    again = tvm.script.from_source(mod.script())
    tvm.ir.assert_structural_equal(again, mod)


@pytest.mark.parametrize(
    ("name", "dtype", "stays"),
    [("tanh", "float16", False), ("tanh", "float64", True), ("sinh", "float64", False)],
)
def test_half_is_computed_in_float32_and_most_of_double_stays(
    name: str, dtype: str, stays: bool
) -> None:
    written = preparation.written_out(_mapped(getattr(tirx, name), dtype))
    assert (f"T.{name}(" in written.script()) == stays
