"""Operators of PyTorch with several element types, and indexing, on the CPU by TVM."""

from __future__ import annotations

import pytest
import torch

from felix import frontend
from tests.felix.frontend.test_networks import run
from tests.support import share
from tests.support.modules import Called


def _assert_agrees(model: Called, *operands: torch.Tensor) -> None:
    """All results of a model by TVM are PyTorch's; one model, as each import takes its time."""
    imported = frontend.import_torch(model, operands)
    assert not imported.pytorch
    result = run(imported, frontend.lowered(imported, "llvm"), operands)
    torch.testing.assert_close(result, model(*operands))


@pytest.mark.slow("builds programs of some dozen calls")
def test_element_types_agree_with_pytorch() -> None:
    functions = (
        lambda x, i, b: torch.isfinite(x),
        lambda x, i, b: b * 2.0,
        lambda x, i, b: b + 1,
        lambda x, i, b: b == 1,
        lambda x, i, b: b * ~b,
        lambda x, i, b: b + b,
        lambda x, i, b: torch.maximum(b, ~b),
        lambda x, i, b: b.cumsum(0),
        lambda x, i, b: b.any(0, keepdim=True),
        lambda x, i, b: b.sum(0),
        lambda x, i, b: b[None].expand(3, 4).sum(0),
        lambda x, i, b: i.abs().sqrt(),
        lambda x, i, b: i.sum(0, dtype=torch.float32),
        lambda x, i, b: i * 0.5,
        lambda x, i, b: i > 0.5,
        lambda x, i, b: i / 2,
        lambda x, i, b: i % 3,
        lambda x, i, b: (i == 0) * -1e4,
        lambda x, i, b: i.clamp(min=0.5),
        lambda x, i, b: i == x,
        lambda x, i, b: i + x,
        lambda x, i, b: x.half() * x,
        lambda x, i, b: i.to(torch.int8) + i,
        lambda x, i, b: torch.where(b, i, 0.5),
        lambda x, i, b: torch.cat([i, x, b]),
        lambda x, i, b: torch.stack([b, i.int(), b], 1),
    )
    _assert_agrees(
        Called(lambda x, i, b: [function(x, i, b) for function in functions]),
        torch.tensor([0.5, -1.5, 2.0, float("inf")]),
        torch.tensor([0, 1, -2, 3]),
        torch.tensor([True, False, True, False]),
    )


@pytest.mark.slow("builds programs of some hundred calls")
def test_indices_agree_with_pytorch() -> None:
    """Indices that count from the end are among them."""
    functions = (
        lambda x, i: x[:, -1],
        lambda x, i: x[..., -2],
        lambda x, i: x.select(-2, -3),
        lambda x, i: x[0, 2, -1],
        lambda x, i: x[:, [-1, 0]],
        lambda x, i: x[[-1, 0], [0, -1]],
        lambda x, i: x[torch.arange(2), -1],
        lambda x, i: x[:, i],
        lambda x, i: x[:, i.int()],
        lambda x, i: x[:, i.view(1, 3)],
        lambda x, i: x[:, i, i],
        lambda x, i: x[:, i.view(3, 1), i],
        lambda x, i: x[i.view(3, 1) % 2, i],
        lambda x, i: torch.cat([x, x])[i, :, i],
        lambda x, i: x.reshape(2, 4, 2, 4)[:, i, :, i],
        lambda x, i: x.reshape(2, 4, 2, 4)[:, i, i % 2],
        lambda x, i: x.reshape(1, 2, 4, 2, 4)[:, :, i.view(1, 3), i.view(3, 1) % 2],
        lambda x, i: torch.take(x, i),
        lambda x, i: torch.take(x, i.view(3, 1)),
    )
    torch.manual_seed(0)
    chosen = share.of(functions, 10)
    model = Called(lambda x: [function(x, model.i) + 1 for function in chosen])
    model.register_buffer("i", torch.tensor([-1, 0, -2]))
    _assert_agrees(model, torch.randn(2, 4, 8))
