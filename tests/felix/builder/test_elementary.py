"""Functions written out for a CPU: against float64 over all float32, and what they are at the
ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import tirx

from felix.builder import build, preparation
from tests.felix.builder.test_preparation import TARGET, _mapped

Array = np.ndarray[Any, Any]

N = 1 << 18
ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 2.0**-126, 3e38, -3e38]

#: function -> its call, the truth, and its error in units of the last place, or None for 1e-7.
FUNCTIONS: dict[str, tuple[Any, Any, float | None]] = {
    "exp": (tirx.exp, torch.exp, 1.0),
    "erf": (tirx.erf, torch.erf, 6.0),
    "tanh": (tirx.tanh, torch.tanh, 7.0),
    "log": (tirx.log, torch.log, 1.0),
    "sin": (tirx.sin, torch.sin, None),
    "cos": (tirx.cos, torch.cos, None),
}


def _inputs(seed: int) -> Array:
    """Any float32, many of usual sizes, and the ends."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 1 << 32, N // 2, np.uint64).astype(np.uint32).view(np.float32)
    usual = (3 * rng.standard_normal(N - N // 2 - len(ENDS))).astype(np.float32)
    return np.concatenate([np.array(ENDS, np.float32), usual, any_bits])


def _computed(function: Callable[..., Any], *inputs: Array) -> Array:
    names = ("x", "y")[: len(inputs)]
    library = build.module(_mapped(function, names=names, count=N), TARGET)
    tensors = [*map(tvm.runtime.tensor, inputs), tvm.runtime.empty((N,), "float32")]
    library["main"](*tensors)
    computed: Array = tensors[-1].numpy()
    return computed


def _check(computed: Array, truth: Array, units: float | None) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = truth.astype(np.float32)
    is_number = np.isfinite(nearest) & (np.abs(nearest) >= np.finfo(np.float32).tiny)
    if units is None:
        is_number = np.isfinite(nearest)
        assert np.abs(computed[is_number] - truth[is_number]).max() < 1e-7
    else:
        unit = np.spacing(np.abs(nearest[is_number])).astype(np.float64)
        assert (np.abs(computed[is_number] - truth[is_number]) / unit).max() < units
    rest = np.isfinite(nearest) & ~is_number
    np.testing.assert_allclose(computed[rest], nearest[rest], atol=1.2e-38)
    others = ~np.isfinite(nearest)
    np.testing.assert_array_equal(computed[others], nearest[others])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_those_that_are_stated(name: str) -> None:
    function, right, units = FUNCTIONS[name]
    x = _inputs(seed=1)
    computed = _computed(function, x)
    truth = right(torch.from_numpy(x).double()).numpy()
    _check(computed, truth, units)
    is_zero = (truth == 0.0) & (x == 0.0)
    np.testing.assert_array_equal(np.signbit(computed[is_zero]), np.signbit(truth[is_zero]))


def test_powers() -> None:
    x, y = _inputs(seed=2), _inputs(seed=3)
    pairs = np.array([*ENDS, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0], np.float32)
    grid = [each.ravel() for each in np.meshgrid(pairs, pairs)]
    x[: grid[0].size], y[: grid[0].size] = grid
    y[N // 4 : N // 2] = np.round(y[N // 4 : N // 2])
    computed = _computed(tirx.power, x, y)
    truth = torch.pow(torch.from_numpy(x).double(), torch.from_numpy(y).double()).numpy()
    _check(computed, truth, 1.0)
    is_number = ~np.isnan(computed)
    np.testing.assert_array_equal(np.signbit(computed[is_number]), np.signbit(truth[is_number]))


@pytest.mark.parametrize("name", [*FUNCTIONS, "sigmoid"])
def test_no_function_of_the_library_is_called(name: str) -> None:
    mod = build.prepared(_mapped(getattr(tirx, name)), TARGET)
    text = tvm.tirx.build(mod, TARGET).inspect_source("ll")
    assert f"@llvm.{name}" not in text and f"@{name}f" not in text
    again = tvm.script.from_source(mod.script())
    tvm.ir.assert_structural_equal(again, mod)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_half_is_computed_in_float32_and_double_stays(dtype: str) -> None:
    written = preparation.written_out(_mapped(tirx.tanh, dtype))
    assert ("T.tanh(" in written.script()) == (dtype == "float64")
