"""Powers with a constant exponent: products and roots, which fast math computes rightly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felix import frontend
from felix.frontend.rewriting import operator_name
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import share


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
