"""Products of one tensor as one product, by the planner: right results, fewer programs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.networks import transformers
from felix import frontend
from felix.frontend.programs.planning import planner
from tests.felix.frontend.planning.test_norms import (
    PLANNED,
    costs,
    lowered,
    lowered_as_written,
    moved_bytes,
    n_calls,
)
from tests.felix.frontend.test_networks import TOLERANCE, assert_agrees, run, small
from tests.support import share


class Heads(nn.Module):
    """Products of one tensor, of different widths, each behind an activation or not."""

    def __init__(self, widths=(32, 16, 8), bias=True, behind=nn.Identity):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, width, bias) for width in widths)
        self.behind = behind()

    def forward(self, x):
        return [self.behind(layer(x)) for layer in self.layers]


class Separate(nn.Module):
    """Products of different tensors."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 16) for _ in range(2))

    def forward(self, x, y):
        return self.layers[0](x), self.layers[1](y)


@pytest.fixture
def eager(monkeypatch):
    """Groups that no other way has cost next to nothing, so they are chosen where they may be."""
    monkeypatch.setattr(planner, "NEW", 0.01)


@pytest.mark.parametrize(
    "bias, dtype", share.crossed([True, False], [torch.float32, torch.bfloat16])
)
def test_merged_products_agree_with_pytorch(dtype, bias, eager):
    torch.manual_seed(0)
    model = Heads(bias=bias, behind=nn.Sigmoid).to(dtype).eval()
    args = (torch.randn(2, 5, 24).to(dtype),)
    imported, module = lowered(model, args)
    assert n_calls(module, "merged_product") == 1
    assert n_calls(module, "merged_part") == 3
    with torch.no_grad():
        assert_agrees(run(imported, module, args), model(*args), TOLERANCE[dtype])
    weights = [var for var in module.get_global_vars() if "merged_weights" in var.name_hint]
    assert len(weights) == 1 + bias
    assert not n_calls(module, "merged_weights")  # once, when the network is loaded


@pytest.mark.slow("builds a whole network")
@pytest.mark.parametrize("batch", share.of([16, 1], 1))
@pytest.mark.parametrize("dtype", share.of([torch.bfloat16, torch.float32], 1))
def test_merged_llama_agrees_with_pytorch(dtype, batch):
    model, args, imported = small("llama", dtype, batch)
    module = frontend.lowered(imported, "llvm", PLANNED)
    # queries, keys and values of two blocks; the norm in front of them is folded, too
    assert n_calls(module, "merged_product_normed_product") == 2
    assert n_calls(module, "merged_part") == 6
    assert n_calls(module, "norm_statistics") == 4
    with torch.no_grad():
        assert_agrees(run(imported, module, args), model(*args), TOLERANCE[dtype])


def test_products_of_different_tensors_stay_apart(eager):
    args = (torch.randn(5, 24), torch.randn(5, 24))
    assert not n_calls(lowered(Separate(), args)[1], "merged")


def test_results_of_the_model_are_not_worth_merging():
    """Each part would be copied out of the one result."""
    module = lowered(Heads(), (torch.randn(2, 5, 24),))[1]
    assert not n_calls(module, "merged") and n_calls(module, "") == 3


@pytest.mark.slow("plans a whole network")
def test_merged_products_without_a_schedule_are_not_chosen(eager):
    model, args = Heads(behind=nn.Sigmoid).eval(), (torch.randn(2, 5, 24),)
    refusing = costs(lambda task: None if "merged_product" in task.name else 1)
    grouping = frontend.Grouping(frontend.Fusion.PLANNED, refusing)
    assert n_calls(lowered(model, args)[1], "merged")
    assert not n_calls(lowered(model, args, grouping)[1], "merged")


@pytest.mark.slow("plans a whole network twice")
def test_a_block_of_llama_has_fewer_programs_and_bytes(monkeypatch):
    torch.manual_seed(0)
    model = transformers.Llama(width=256, hidden=688, heads=4, depth=1, rows=64).eval()
    args = (torch.randn(1, 64, 256),)
    planned = lowered(model, args)[1]
    as_written = lowered_as_written(model, args, monkeypatch)
    assert (n_calls(planned, ""), n_calls(as_written, "")) == (13, 15)
    # three programs read a third each of the result of queries, keys and values
    not_read = 2 * 64 * 3 * 256 * 4
    saved = 1 - (moved_bytes(planned) - not_read) / moved_bytes(as_written)
    assert saved == pytest.approx(0.044, abs=0.002)
