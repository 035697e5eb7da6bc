"""Functions that are small near 0 keep their small results; powers are products and roots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from tvm import relax

from felix import frontend
from felix.frontend.rewriting import operator_name
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import share

MAGNITUDES = torch.logspace(-30, -0.01, 200)
BOTH = torch.cat([MAGNITUDES, -MAGNITUDES])
LINE = torch.linspace(-80, 80, 400)
Function = Callable[[torch.Tensor], torch.Tensor]


class Call(nn.Module):
    def __init__(self, call: Function) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x)


def computed(call: Function, x: torch.Tensor) -> torch.Tensor:
    imported = frontend.import_torch(Call(call), (x,))
    result: torch.Tensor = run(imported, frontend.lowered(imported), [x])
    return result


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error; results that are no normal numbers do not count."""
    least = torch.finfo(result.dtype).tiny
    return float(((result.double() - expected).abs() / expected.abs().clamp_min(least)).max())


@pytest.mark.parametrize(
    ("call", "x"),
    [
        (torch.log1p, torch.cat([BOTH, torch.logspace(0, 30, 50)])),
        (torch.expm1, torch.cat([BOTH, LINE])),
        (torch.atanh, BOTH),
        (functional.softplus, LINE),
        (lambda x: functional.softplus(x, 3.0, 5.0), LINE / 4),
        (functional.logsigmoid, LINE),
        (functional.elu, BOTH),
        (functional.celu, BOTH),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_results_are_kept(call: Function, x: torch.Tensor, dtype: torch.dtype) -> None:
    x = x.to(dtype)
    limit = 5e-6 if dtype == torch.float32 else 1e-14
    # A program of float64 has no wider reference than PyTorch's own.
    assert error(computed(call, x), call(x.double())) < limit


@pytest.mark.parametrize("call", [torch.log1p, torch.expm1, torch.atanh, functional.softplus])
def test_values_at_the_ends(call: Function) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, -2.0, 0.0, 1.0])
    torch.testing.assert_close(computed(call, x), call(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("call", [torch.log1p, torch.expm1, torch.atanh])
def test_half_precision_is_rounded_once(call: Function, dtype: torch.dtype) -> None:
    x = torch.linspace(-0.9, 0.9, 101).to(dtype)
    torch.testing.assert_close(computed(call, x), call(x), rtol=torch.finfo(dtype).eps, atol=0)


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
    result = run(imported, frontend.lowered(imported), [x])
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
    imported = frontend.import_torch(Call(torch.relu), (LINE,))
    imported = dataclasses.replace(imported, mod=builder.get())
    actual = run(imported, frontend.lowered(imported), [LINE / 8])
    assert error(actual, functional.softplus(LINE.double() / 8, 3.0, 5.0)) < 5e-6


# Powers with a constant exponent: products and roots, which fast math computes rightly.


class Power(nn.Module):
    def __init__(self, exponent: float | torch.Tensor, is_absolute: bool) -> None:
        super().__init__()
        self.exponent, self.is_absolute = exponent, is_absolute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.abs() if self.is_absolute else x) ** self.exponent


def operators(imported: frontend.imported.ImportedModel) -> set[str]:
    blocks = imported.mod["main"].body.blocks
    return {operator_name(binding.value) for block in blocks for binding in block.bindings}


@pytest.mark.parametrize(
    "exponent, dtype",
    share.crossed(
        [1, 2, 3, 7, 16, -1, -2, 0.5, -0.5], [torch.float32, torch.float16, torch.bfloat16]
    ),
)
def test_a_constant_exponent_is_a_product(exponent: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Power(exponent, is_absolute=abs(exponent) < 1)
    x = (torch.rand(5, 7) + 0.5).copysign(torch.randn(5, 7)).to(dtype)
    imported = frontend.import_torch(model, (x,))
    assert "power" not in operators(imported)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert_agrees(run(imported, frontend.lowered(imported), [x]), model(x), tolerance)


def test_a_tensor_with_one_exponent_is_known() -> None:
    x, model = torch.randn(5, 7), Power(torch.tensor(3.0), is_absolute=False)
    imported = frontend.import_torch(model, (x,))
    assert "power" not in operators(imported)
    assert_agrees(run(imported, frontend.lowered(imported), [x]), model(x), 1e-5)


def test_a_small_half_has_no_early_overflow() -> None:
    """300 ** -2 is a float16, 300 ** 2 is none."""
    x = torch.full((3,), 300.0, dtype=torch.float16)
    model = Power(-2, is_absolute=False)
    imported = frontend.import_torch(model, (x,))
    assert_agrees(run(imported, frontend.lowered(imported), [x]), model(x), 1e-3)
    assert float(model(x)[0]) > 0


@pytest.mark.parametrize("exponent", [1.3, 17, torch.rand(5, 7), torch.tensor([[[2.0]]])])
def test_other_powers_stay(exponent: float | torch.Tensor) -> None:
    torch.manual_seed(0)
    model, x = Power(exponent, is_absolute=True), torch.rand(5, 7) + 0.5
    imported = frontend.import_torch(model, (x,))
    assert "power" in operators(imported)
    assert_agrees(run(imported, frontend.lowered(imported), [x]), model(x), 1e-5)


def test_integers_stay_integers() -> None:
    x = torch.randint(-5, 5, (5, 7), dtype=torch.int32)
    model = Power(2, is_absolute=False)
    imported = frontend.import_torch(model, (x,))
    result = run(imported, frontend.lowered(imported), [x])
    assert torch.equal(result, model(x))
