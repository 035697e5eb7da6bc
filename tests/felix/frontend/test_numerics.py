"""Functions that are small near 0 keep their small results; powers are products and roots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from tvm import relax

from felix import frontend
from felix.frontend.rewriting import operator_name
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import share
from tests.support.modules import Called

MAGNITUDES = torch.logspace(-30, -0.01, 200)
BOTH = torch.cat([MAGNITUDES, -MAGNITUDES])
LINE = torch.linspace(-80, 80, 400)
Function = Callable[[torch.Tensor], torch.Tensor]


def computed(call: Callable[..., Any], *x: torch.Tensor) -> Any:
    imported = frontend.import_torch(Called(call), x)
    return run(imported, frontend.lowered(imported), x, optimization=3)


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error; results that are no normal numbers do not count."""
    least = torch.finfo(result.dtype).tiny
    return float(((result.double() - expected).abs() / expected.abs().clamp_min(least)).max())


@pytest.mark.parametrize(
    ("dtype", "limit"), share.of([(torch.float32, 5e-6), (torch.float64, 1e-14)], 1)
)
def test_small_results_are_kept(dtype: torch.dtype, limit: float) -> None:
    functions: tuple[tuple[Function, torch.Tensor], ...] = (
        (torch.log1p, torch.cat([BOTH, torch.logspace(0, 30, 50)])),
        (torch.expm1, torch.cat([BOTH, LINE])),
        (torch.atanh, BOTH),
        (functional.softplus, LINE),
        (lambda x: functional.softplus(x, 3.0, 5.0), LINE / 4),
        (functional.logsigmoid, LINE),
        (functional.elu, BOTH),
        (functional.celu, BOTH),
    )
    calls, inputs = [call for call, _ in functions], [x.to(dtype) for _, x in functions]
    results = computed(lambda *xs: [f(x) for f, x in zip(calls, xs, strict=True)], *inputs)
    for call, x, result in zip(calls, inputs, results, strict=True):
        # A program of float64 has no wider reference than PyTorch's own.
        assert error(result, call(x.double())) < limit


def test_values_at_the_ends() -> None:
    def ends(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.log1p(x), torch.expm1(x), torch.atanh(x), functional.softplus(x)]

    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, -2.0, 0.0, 1.0])
    torch.testing.assert_close(computed(ends, x), ends(x), equal_nan=True)


@pytest.mark.slow("builds programs of all functions")
def test_half_precision_is_rounded_once() -> None:
    def functions(*tensors: torch.Tensor) -> list[list[torch.Tensor]]:
        return [[torch.log1p(x), torch.expm1(x), torch.atanh(x)] for x in tensors]

    inputs = [torch.linspace(-0.9, 0.9, 101).to(d) for d in (torch.float16, torch.bfloat16)]
    for results, expected in zip(computed(functions, *inputs), functions(*inputs), strict=True):
        rtol = torch.finfo(expected[0].dtype).eps
        torch.testing.assert_close(results, expected, rtol=rtol, atol=0)


def test_integers_become_floats() -> None:
    x = torch.arange(3)
    torch.testing.assert_close(computed(torch.log1p, x), torch.log1p(x))


@pytest.mark.parametrize("operator", ["Softplus", "Atanh"])
def test_onnx_is_as_exact(operator: str) -> None:
    helper: Any = pytest.importorskip("onnx", reason="onnx is an optional extra").helper
    x = LINE if operator == "Softplus" else BOTH
    types = [[helper.make_tensor_value_info(name, 1, x.shape)] for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", *types)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = frontend.import_onnx(made.SerializeToString())
    call = functional.softplus if operator == "Softplus" else torch.atanh
    result = run(imported, frontend.lowered(imported), [x], optimization=3)
    assert error(result, call(x.double())) < 5e-6


def test_the_threshold_of_softplus_is_pytorchs() -> None:
    """Relax's operator, as graphs that are not decomposed have it."""
    x = relax.Var("x", relax.TensorType((400,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.softplus(x, 3.0, 5.0))
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    imported = frontend.import_torch(Called(torch.relu), (LINE,))
    imported = dataclasses.replace(imported, mod=builder.get())
    actual = run(imported, frontend.lowered(imported), [LINE / 8], optimization=3)
    assert error(actual, functional.softplus(LINE.double() / 8, 3.0, 5.0)) < 5e-6


# Powers with a constant exponent: products and roots, which fast math computes rightly.


def powers(
    model: Called, *x: torch.Tensor, tolerance: float = 1e-5
) -> tuple[int, list[torch.Tensor]]:
    """How many powers a model has once it is imported, and its results, which are PyTorch's."""
    imported = frontend.import_torch(model, x)
    blocks = imported.mod["main"].body.blocks
    names = [operator_name(binding.value) for block in blocks for binding in block.bindings]
    results = run(imported, frontend.lowered(imported), x, optimization=3)
    for result, expected in zip(results, model(*x), strict=True):
        assert_agrees(result, expected, tolerance)
    return names.count("power"), results


@pytest.mark.parametrize("dtype", share.of([torch.float32, torch.float16, torch.bfloat16], 1))
def test_a_constant_exponent_is_a_product(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.rand(5, 7) + 0.5).copysign(torch.randn(5, 7)).to(dtype)
    model = Called(
        lambda x: [
            *(x**exponent for exponent in (1, 2, 3, 7, 16, -1, -2)),
            *(x.abs() ** exponent for exponent in (0.5, -0.5)),
        ]
    )
    assert powers(model, x, tolerance=1e-5 if dtype == torch.float32 else 1e-2)[0] == 0


def test_a_tensor_with_one_exponent_is_known() -> None:
    assert powers(Called(lambda x: [x ** torch.tensor(3.0)]), torch.randn(5, 7))[0] == 0


def test_a_small_half_has_no_early_overflow() -> None:
    """300 ** -2 is a float16, 300 ** 2 is none."""
    x = torch.full((3,), 300.0, dtype=torch.float16)
    _, (result,) = powers(Called(lambda x: [x**-2]), x, tolerance=1e-3)
    assert float(result[0]) > 0


@pytest.mark.slow("builds programs of many powers")
def test_other_powers_stay() -> None:
    torch.manual_seed(0)
    x = torch.rand(5, 7) + 0.5
    exponents = (1.3, 17, torch.rand(5, 7), torch.tensor([[[2.0]]]))
    model = Called(lambda x: [x.abs() ** exponent for exponent in exponents])
    assert powers(model, x)[0] == len(exponents)


def test_integers_stay_integers() -> None:
    x = torch.randint(-5, 5, (5, 7), dtype=torch.int32)
    assert torch.equal(powers(Called(lambda x: [x**2]), x)[1][0], x**2)
