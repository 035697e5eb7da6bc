"""Recurrent modules: Dynamo leaves them to PyTorch, or traces them where it is told to."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo import config

from felix.network.backend import entry
from tests.support import backend

_MODULES: list[tuple[Callable[[], nn.Module], set[str], set[str]]] = [
    (lambda: nn.GRU(4, 5, batch_first=True), {"linear", "sigmoid", "tanh"}, set()),
    (
        lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
        {"cat"},
        {"aten.mkldnn_rnn_layer.default"},
    ),
    (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LSTM(4, 3)),
        {"linear", "relu"},
        {"aten.mkldnn_rnn_layer.default"},
    ),
]


def _outputs(call: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        leaves: list[torch.Tensor] = torch.utils._pytree.tree_leaves(call(x))
    return leaves


@pytest.mark.parametrize("allow_rnn", [False, True])
@pytest.mark.parametrize(("make", "tuned", "left"), _MODULES, ids=["GRU", "LSTM", "Sequential"])
def test_recurrent_modules(
    make: Callable[[], nn.Module],
    tuned: set[str],
    left: set[str],
    allow_rnn: bool,
    everything_known: pathlib.Path,
) -> None:
    model, x = make().eval(), torch.randn(3, 2, 4)
    fast = backend.compiled(model, everything_known)
    with config.patch(allow_rnn=allow_rnn):
        outputs = _outputs(fast, x)
    for output, expected in zip(outputs, _outputs(model, x), strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    graphs = entry.backend_report().graphs
    if not allow_rnn:
        assert not graphs
        return
    assert tuned <= backend.tuned_operators()
    # where PyTorch has the layer as one operator, TVM does not import it
    operators = {name for graph in graphs for size in graph.sizes for name in size.pytorch}
    assert left <= operators or not torch.backends.mkldnn.is_available()


def test_a_cell_is_compiled(everything_known: pathlib.Path) -> None:
    model, x = nn.LSTMCell(4, 5), torch.randn(2, 4)
    outputs = _outputs(backend.compiled(model, everything_known), x)
    for output, expected in zip(outputs, _outputs(model, x), strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    assert backend.tuned_operators() >= {"linear", "sigmoid", "tanh"}
