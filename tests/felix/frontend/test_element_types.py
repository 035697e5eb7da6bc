"""Operators of PyTorch whose operands have several element types, on the CPU by TVM."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
def test_agrees_with_pytorch(
    function: Callable[..., torch.Tensor], operands: tuple[torch.Tensor, ...]
) -> None:
    model = Called(function)
    imported = frontend.import_torch(model, operands)
    assert not imported.pytorch
    result = run(imported, frontend.lowered(imported, "llvm"), operands)
    torch.testing.assert_close(result, model(*operands))
