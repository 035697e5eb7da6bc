"""Operators without a program: named in the error, or written with others that have one; groups by
rules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felix import errors, frontend
from felix.frontend.pytorch import comparison
from tests.felix.frontend.test_networks import assert_agrees, run, small
from tests.support.modules import Called


def test_the_error_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "is_right", lambda *_: True)  # PyTorch would keep it
    model = Called(lambda x: (x.float() + 1).long() * 2 % 0)
    imported = frontend.import_torch(model, (torch.arange(3),))
    with pytest.raises(errors.WorkloadError, match="'floor_mod' of int64") as raised:
        frontend.lowered(imported)
    assert "write the model with other operators" in str(raised.value)


@pytest.mark.slow("builds programs of all norms")
def test_norms_of_float64() -> None:
    torch.manual_seed(0)
    shapes = ((3, 8), (3, 4, 8), (3, 8, 4), (3, 8))
    norms = (
        nn.LayerNorm(8),
        nn.LayerNorm((4, 8), elementwise_affine=False),
        nn.GroupNorm(2, 8),
        nn.RMSNorm(8),
    )
    model = Called(lambda *x: [norm(each) for norm, each in zip(norms, x, strict=True)], *norms)
    for parameter in model.double().requires_grad_(False).parameters():
        parameter.copy_(torch.randn_like(parameter))
    x = [torch.randn(shape).double() for shape in shapes]
    imported = frontend.import_torch(model, x)
    assert_agrees(run(imported, frontend.lowered(imported), x, optimization=3), model(*x), 1e-14)


def test_a_quotient_by_zero() -> None:
    def quotients(*tensors: torch.Tensor) -> list[list[torch.Tensor]]:
        return [[x / 0, x / -0.0, x + torch.ones(5) / 0] for x in tensors]

    x = torch.tensor([1.0, -2.0, 0.0, torch.nan, torch.inf])
    imported = frontend.import_torch(Called(quotients), (x, x.half()))
    result = run(imported, frontend.lowered(imported), [x, x.half()], optimization=3)
    torch.testing.assert_close(result, quotients(x, x.half()), rtol=0, atol=0, equal_nan=True)


# Which operators the fixed rules make one program.


def test_norms_of_narrow_elements_take_the_casts_around_them():
    lowered = frontend.lowered(small("vit_b32", torch.bfloat16)[2])
    names = {variable.name_hint for variable in lowered.get_global_vars()}
    assert "layer_norm" not in names
    assert any(name.startswith("fused_cast_layer_norm_cast") for name in names)
