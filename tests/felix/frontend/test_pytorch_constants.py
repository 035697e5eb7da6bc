"""What a model computes from its parameters and constants alone is computed once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from felix import frontend
from felix.frontend.pytorch import comparison, constants
from tests.felix.frontend.test_networks import run


class _Windows(nn.Module):
    """An attention's mask of windows, which is made anew in each call, and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("rows", torch.randint(9, (16,)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.new_zeros((4, 4))
        mask[1:3, 2:] = 1.0
        parts = mask.view(2, 2, 4) - mask.view(2, 1, 8)[..., :4]
        mask = parts.masked_fill(parts != 0, -100.0).view(4, 4)
        positions = self.table[self.rows].view(4, 4, 2).permute(2, 0, 1).contiguous()
        return x + positions + mask


def _n_programs(model: nn.Module, *inputs: torch.Tensor) -> int:
    """Calls of programs, of a model that computes by TVM what it does."""
    imported = frontend.import_torch(model, inputs)
    lowered = frontend.lowered(imported, "llvm")
    torch.testing.assert_close(run(imported, lowered, inputs), model(*inputs))
    return sum(frontend.calls(lowered).values())


def test_a_model_computes_only_what_depends_on_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rare operators, like slices that are written, need no comparison."""
    model, x = _Windows(), torch.randn(2, 4, 4)
    monkeypatch.setattr(comparison, "_is_same_drawn", None)
    assert _n_programs(model, x) == 1
    imported = frontend.import_torch(model, (x,))
    (positions,) = imported.parameters  # the table itself is read by nothing any more
    assert positions.shape == (2, 4, 4) and not positions.requires_grad


class _Called(nn.Module):
    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.call = call
        self.weights = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, self.weights)


def _nodes_after(call: Callable[..., torch.Tensor], x: torch.Tensor) -> list[str]:
    program = torch.export.export(_Called(call), (x,)).run_decompositions({})
    constants.compute(program)
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (lambda x, w: x @ w.t(), ["aten.t.default", "aten.matmul.default"]),
        (lambda x, w: x + torch.full((4,), 2.0), ["aten.full.default", "aten.add.Tensor"]),
        (lambda x, w: x * w[0].exp().expand(3, 4), ["aten.expand.default", "aten.mul.Tensor"]),
        (lambda x, w: x + w.sum(), ["aten.add.Tensor"]),
    ],
    ids=["view", "no operands", "view of a value", "value"],
)
def test_views_and_what_needs_no_memory_stay(
    call: Callable[..., torch.Tensor], left: list[str]
) -> None:
    assert _nodes_after(call, torch.randn(3, 4)) == left


def test_large_values_and_random_ones_stay() -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        large = torch.arange(2048)[:, None] * torch.arange(2048)
        return x + large.sum() + w.sum() + torch.rand(())

    found = _nodes_after(call, torch.randn(3, 4))
    assert found.count("aten.rand.default") == found.count("aten.mul.Tensor") == 1
    assert found.count("aten.sum.default") == 1  # that of the parameter is known


def test_a_value_that_the_model_returns_stays_an_output() -> None:
    model = _Called(lambda x, w: (w.exp(), x + w.exp()))
    x = torch.randn(8, 4)
    imported = frontend.import_torch(model, (x,))
    first, second = run(imported, frontend.lowered(imported, "llvm"), (x,))
    torch.testing.assert_close((first, second), model(x))
