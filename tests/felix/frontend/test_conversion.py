"""Operators of PyTorch with several element types, and indexing, on the CPU by TVM."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from felix import frontend
from tests.felix.frontend.test_networks import run
from tests.support.modules import Called

FLOATS = torch.tensor([0.5, -1.5, 2.0, float("inf")])
WHOLE = torch.tensor([0, 1, -2, 3])
FLAGS = torch.tensor([True, False, True, False])


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (torch.isfinite, (FLOATS,)),
        (lambda b: b * 2.0, (FLAGS,)),
        (lambda b: b + 1, (FLAGS,)),
        (lambda b: b == 1, (FLAGS,)),
        (lambda b: b * ~b, (FLAGS,)),
        (lambda b: b + b, (FLAGS,)),
        (lambda b: torch.maximum(b, ~b), (FLAGS,)),
        (lambda b: b.cumsum(0), (FLAGS,)),
        (lambda b: b.any(0, keepdim=True), (FLAGS,)),
        (lambda b: b.sum(0), (FLAGS,)),
        (lambda b: b[None].expand(3, 4).sum(0), (FLAGS,)),
        (lambda i: i.abs().sqrt(), (WHOLE,)),
        (lambda i: i.sum(0, dtype=torch.float32), (WHOLE,)),
        (lambda i: i * 0.5, (WHOLE,)),
        (lambda i: i > 0.5, (WHOLE,)),
        (lambda i: i / 2, (WHOLE,)),
        (lambda i: i % 3, (WHOLE,)),
        (lambda i: (i == 0) * -1e4, (WHOLE,)),
        (lambda i: i.clamp(min=0.5), (WHOLE,)),
        (lambda i, x: i == x, (WHOLE, FLOATS)),
        (lambda i, x: i + x, (WHOLE, FLOATS)),
        (lambda x, y: x * y, (FLOATS.half(), FLOATS)),
        (lambda i, j: i + j, (WHOLE.to(torch.int8), WHOLE)),
        (lambda b, i: torch.where(b, i, 0.5), (FLAGS, WHOLE)),
    ],
)
def test_element_types_agree_with_pytorch(
    function: Callable[..., torch.Tensor], operands: tuple[torch.Tensor, ...]
) -> None:
    model = Called(function)
    imported = frontend.import_torch(model, operands)
    assert not imported.pytorch
    result = run(imported, frontend.lowered(imported, "llvm"), operands)
    torch.testing.assert_close(result, model(*operands))


# PyTorch's indexing, with indices that count from the end among it, on the CPU by TVM.


class _Indexed(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("i", torch.tensor([-1, 0, -2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.i) + 1


@pytest.mark.parametrize(
    "function",
    [
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
    ],
)
def test_indices_agree_with_pytorch(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    model, x = _Indexed(function), torch.randn(2, 4, 8)
    imported = frontend.import_torch(model, (x,))
    result = run(imported, frontend.lowered(imported, "llvm"), (x,))
    torch.testing.assert_close(result, model(x))
