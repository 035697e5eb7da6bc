"""Norms folded into the products behind them, by the planner: right results, fewer bytes."""

from __future__ import annotations

import math
import types

import pytest
import torch
from torch import nn

from benchmarks.networks import transformers
from felix import frontend
from felix.frontend import Fusion, Grouping
from felix.frontend.programs.planning import merged, norms, planner
from felix.frontend.programs.planning.graph import Schedules
from felix.tir import grammar
from tests.felix.frontend.test_networks import TOLERANCE, assert_agrees, run, small
from tests.support import share

PLANNED = Grouping(Fusion.PLANNED)


def lowered(model, args, grouping=PLANNED):
    imported = frontend.import_torch(model, args)
    return imported, frontend.lowered(imported, "llvm", grouping)


def lowered_as_written(model, args, monkeypatch):
    """The module of planned groups of the model's own operators alone."""
    with monkeypatch.context() as patch:
        for rewriting in (merged, norms):
            patch.setattr(rewriting, "extended", lambda read: read)
        return lowered(model, args)[1]


def costs(n_kernels=lambda task: 1, latency_us=lambda task: None):
    """What is known of candidates: how many kernels each is, and how long it takes."""
    return types.SimpleNamespace(
        schedules=lambda tasks: [Schedules(n_kernels(task)) for task in tasks],
        latency_us=latency_us,
    )


def n_calls(module, word):
    return sum(n for name, n in frontend.calls(module).items() if word in name)


def moved_bytes(module):
    """Bytes that the programs of a call read and write, each tensor once a program."""
    counted = frontend.calls(module)
    total = 0
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if hasattr(value, "args") and str(getattr(value.op, "name", "")) == "relax.call_tir":
                if str(value.args[0].name_hint) in counted:
                    total += sum(map(n_bytes, [*value.args[1].fields, binding.var]))
    return total


def n_bytes(var):
    return math.prod(map(int, var.ty.shape)) * grammar.element_bytes(str(var.ty.dtype))


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Products of one tensor stay products of their own."""
    monkeypatch.setattr(merged, "extended", lambda read: read)


@pytest.fixture
def eager(monkeypatch):
    """Groups that no other way has cost half, so folding is chosen wherever it is legal."""
    monkeypatch.setattr(planner, "NEW", 0.5)


@pytest.mark.slow("builds a whole network")
@pytest.mark.parametrize("batch", share.of([1, 16], 1))
@pytest.mark.parametrize("dtype", share.of([torch.bfloat16, torch.float32], 1))
@pytest.mark.parametrize(
    ("name", "n_products", "n_norms"),
    share.of([("llama", 10, 4), ("vit_b32", 4, 4), ("bert_base", 0, 0)], 1),
)
def test_folded_networks_agree_with_pytorch(name, n_products, n_norms, dtype, batch, eager):
    model, args, imported = small(name, dtype, batch)
    module = frontend.lowered(imported, "llvm", PLANNED)
    assert n_calls(module, "normed_product") == n_products
    assert n_calls(module, "norm_statistics") == n_norms  # one for all products of a norm
    with torch.no_grad():
        assert_agrees(run(imported, module, args), model(*args), TOLERANCE[dtype])


class Normed(nn.Module):
    """A norm, products behind it, and perhaps another reader of its result."""

    def __init__(self, norm, n_products=1, is_read=False, width=32):
        super().__init__()
        self.norm = norm
        self.layers = nn.ModuleList(nn.Linear(width, 48) for _ in range(n_products))
        self.is_read = is_read

    def forward(self, x):
        y = self.norm(x)
        outputs = [layer(y) for layer in self.layers]
        return [*outputs, y] if self.is_read else outputs


def make(norm, seed=0, **options):
    torch.manual_seed(seed)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    if getattr(norm, "bias", None) is not None:
        nn.init.normal_(norm.bias)
    return Normed(norm, **options).eval()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_that_something_else_reads_stays(norm, eager):
    x = torch.randn(2, 5, 32)
    assert n_calls(lowered(make(norm(32)), (x,))[1], "normed_product") == 1
    module = lowered(make(norm(32), is_read=True), (x,))[1]
    assert not n_calls(module, "normed_product") and not n_calls(module, "norm_statistics")


def test_an_activation_behind_a_norm_keeps_it(eager):
    model = make(nn.LayerNorm(32))
    model.norm = nn.Sequential(model.norm, nn.ReLU())
    assert not n_calls(lowered(model, (torch.randn(2, 5, 32),))[1], "normed_product")


@pytest.mark.parametrize(("of_statistics", "is_folded"), [(1, True), (2, False), (None, False)])
def test_what_is_cheaper_is_chosen(of_statistics, is_folded):
    model, x = make(nn.RMSNorm(512), width=512), torch.randn(1, 4096, 512)
    known = costs(lambda task: of_statistics if "norm_statistics" in task.name else 1)
    grouping = Grouping(Fusion.PLANNED, known)
    # a launch costs as much as some tens of kilobytes
    module = lowered(model, (x[:, :4],) if of_statistics == 2 else (x,), grouping)[1]
    assert bool(n_calls(module, "normed_product")) == is_folded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_with_large_means_lose_no_more_than_their_products_do(dtype, eager):
    model = make(nn.LayerNorm(64), width=64).to(dtype)
    x = (torch.randn(2, 8, 64) + 20).to(dtype)
    with torch.no_grad():
        exact = make(nn.LayerNorm(64), width=64).to(dtype).double()(x.double())
    imported, module = lowered(model, (x,))
    assert n_calls(module, "normed_product") == 1
    (result,) = run(imported, module, (x,))
    error = float((result.double() - exact[0]).abs().max() / exact[0].abs().max())
    assert error < (2e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.slow("plans a whole network twice")
def test_folding_writes_fewer_bytes_and_as_many_programs(monkeypatch):
    torch.manual_seed(0)
    model = transformers.Llama(width=256, hidden=688, heads=4, depth=1, rows=512).eval()
    args = (torch.randn(1, 512, 256),)
    planned = lowered(model, args)[1]
    as_written = lowered_as_written(model, args, monkeypatch)
    assert n_calls(planned, "normed_product") == 5
    assert n_calls(planned, "") == n_calls(as_written, "")
    norm_bytes = 2 * 512 * 256 * 4  # two norms no longer write their results
    saved = moved_bytes(as_written) - moved_bytes(planned)
    assert 0.9 * norm_bytes < saved <= norm_bytes


@pytest.mark.slow("plans a whole network")
def test_weights_are_no_tasks():
    module = frontend.lowered(small("llama")[2], "llvm", PLANNED)
    names = {str(variable.name_hint) for variable in module.get_global_vars()}
    assert any("norm_weights" in name for name in names)
    assert not n_calls(module, "norm_weights")
    read = frontend.model_tasks(module)
    assert not any("norm_weights" in name for item in read.tasks for name in item.functions)
    assert not any("norm_weights" in name for name in read.refused)


def test_names_say_what_is_folded():
    assert "folded" in frontend.rewriting_of("fused_normed_product_add")
    assert "statistics" in frontend.rewriting_of("norm_statistics3")
    assert frontend.rewriting_of("fused_NT_matmul_add") is None
