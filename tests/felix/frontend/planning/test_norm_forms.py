"""Products that norms are folded into, as PyTorch computes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felix import frontend, target
from felix.frontend import Fusion, Grouping
from felix.frontend.programs.planning import planner
from felix.network import assembly, groups
from felix.torch_calls.form import TorchForm
from tests.felix.frontend.test_networks import TOLERANCE, assert_agrees, run, small
from tests.support import share

LLVM = "llvm"


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that no other way has cost half, so folding is chosen wherever it is legal."""
    monkeypatch.setattr(planner, "NEW", 0.5)


def _by_pytorch(
    model: nn.Module, args: tuple[torch.Tensor, ...], imported: frontend.ImportedModel
) -> list[str]:
    """Check the network with PyTorch's functions for all normed products that have any.

    Returns:
        the functions of each.
    """
    lowered = frontend.lowered(imported, LLVM, Grouping(Fusion.PLANNED))
    every = groups.of(lowered, target.parse(LLVM))
    normed = [group for group in every if "normed_product" in group.name]
    known = [(group, group.form) for group in normed if isinstance(group.form, TorchForm)]
    mod = assembly.assemble(lowered, known)
    called = set(frontend.calls(mod))
    assert not any(symbol in called for group, _ in known for symbol in group.symbols)
    with torch.no_grad():
        dtype = next(model.parameters()).dtype
        assert_agrees(run(imported, mod, args), model(*args), TOLERANCE[dtype])
    return [form.functions for _, form in known]


@pytest.mark.slow("builds a whole network")
@pytest.mark.parametrize("dtype", share.of([torch.bfloat16, torch.float32], 1))
@pytest.mark.parametrize("batch", share.of([1, 16], 1))
def test_a_network_with_rms_norms(dtype: torch.dtype, batch: int) -> None:
    known = _by_pytorch(*small("llama", dtype, batch))
    assert known
    assert all(each.startswith("matmul_transposed, narrow, reshape, multiply") for each in known)
    assert any("silu" in each for each in known)


@pytest.mark.slow("builds a whole network")
def test_a_network_with_layer_norms() -> None:
    known = _by_pytorch(*small("vit_b32"))
    added = "narrow, reshape, multiply, add, add"
    assert known
    assert all(f"matmul_transposed, narrow, reshape, multiply, {added}" in each for each in known)


@pytest.mark.slow("a whole network again")
def test_sums_of_16_bits_are_not_taken_apart() -> None:
    """What is left of a sum less a mean would be of few bits."""
    assert not _by_pytorch(*small("vit_b32", torch.bfloat16))


def test_a_square_weight_that_is_not_transposed() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.weight = nn.Parameter(torch.randn(32, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) @ self.weight

    torch.manual_seed(0)
    model = Normed().eval()
    nn.init.normal_(model.norm.bias)
    args = (torch.randn(2, 5, 32),)
    (known,) = _by_pytorch(model, args, frontend.import_torch(model, args))
    assert known.startswith("matmul, narrow")
