"""Operators without a program: named in the error, or written with others that have one; groups by
rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.networks import catalogue
from felix import errors, frontend
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.felix.frontend.test_numerics import Call


def test_the_error_names_the_operator() -> None:
    model = Call(lambda x: (x.float() + 1).long() * 2 % 0)
    imported = frontend.import_torch(model, (torch.arange(3),))
    with pytest.raises(errors.WorkloadError, match="'floor_mod' of int64") as raised:
        frontend.lowered(imported)
    assert "write the model with other operators" in str(raised.value)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.LayerNorm(8), (3, 8)),
        (nn.LayerNorm((4, 8), elementwise_affine=False), (3, 4, 8)),
        (nn.GroupNorm(2, 8), (3, 8, 4)),
        (nn.RMSNorm(8), (3, 8)),
    ],
)
def test_norms_of_float64(model: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    wide, x = model.double().requires_grad_(False), torch.randn(shape).double()
    for parameter in wide.parameters():
        parameter.copy_(torch.randn_like(parameter))
    imported = frontend.import_torch(wide, (x,))
    assert_agrees(run(imported, frontend.lowered(imported), [x]), wide(x), 1e-14)


@pytest.mark.parametrize(
    "call", [lambda x: x / 0, lambda x: x / -0.0, lambda x: x + torch.ones(5) / 0]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_quotient_by_zero(
    call: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x = torch.tensor([1.0, -2.0, 0.0, torch.nan, torch.inf]).to(dtype)
    imported = frontend.import_torch(Call(call), (x,))
    result = run(imported, frontend.lowered(imported), [x])
    torch.testing.assert_close(result, call(x), rtol=0, atol=0, equal_nan=True)


# Which operators the fixed rules make one program.


def test_norms_of_narrow_elements_take_the_casts_around_them():
    model, args = catalogue.make("vit_b32", dtype=torch.bfloat16, small=True)
    lowered = frontend.lowered(frontend.import_torch(model, args))
    names = {variable.name_hint for variable in lowered.get_global_vars()}
    assert "layer_norm" not in names
    assert any(name.startswith("fused_cast_layer_norm_cast") for name in names)
