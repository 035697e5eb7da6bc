"""What PyTorch's own tests ask of a backend (its test/dynamo/test_backends.py, with this backend).

Those that are about one backend of PyTorch's or about registering one are left out, and those
that other tests of this folder hold: of modules, modes, nested inputs and numbers.
"""

from __future__ import annotations

import pathlib
from concurrent import futures
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import testing
from torch._dynamo.backends import debugging

from felix.database import store
from felix.network.backend import entry
from tests.support import backend, networks


def test_the_name_finds_it(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "felix" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("felix") is entry.backend
    monkeypatch.setenv(store.VARIABLE, str(everything_known / "known.sqlite"))
    fast = torch.compile(torch.cos, backend="felix", options={"never_slower": False})
    x = torch.randn(5)
    assert testing.same(fast(x), torch.cos(x)) and backend.tuned_operators() == {"cos"}


def test_types_that_differ(everything_known: pathlib.Path) -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.cos(a)
        x += b
        return torch.sin(x)

    a, b = torch.randn(10), torch.randn(10, dtype=torch.float64)
    assert testing.same(call(a, b), backend.compiled(call, everything_known)(a, b))
    assert backend.tuned_operators() >= {"cos", "sin"}


def test_explained(everything_known: pathlib.Path) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        torch._dynamo.graph_break()
        return torch.sin(x)

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.cos(inner(torch.cos(torch.sigmoid(x)))))

    explained = debugging.ExplainWithBackend(entry.backend)
    x = torch.randn(5)
    assert testing.same(torch.compile(call, backend=explained)(x), call(x))
    output = explained.output()
    # Each frame around the break is a graph before it and one behind it.
    assert (output.graph_count, output.graph_break_count, output.op_count) == (4, 3, 6)
    assert len(entry.backend_report().graphs) == 4


def test_called_by_another_backend(everything_known: pathlib.Path) -> None:
    def other(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return torch._dynamo.lookup_backend("felix")(
            graph, inputs, options={"target": networks.TARGET}
        )

    x = torch.randn(3)
    assert testing.same(torch.compile(torch.exp, backend=other)(x), torch.exp(x))
    assert entry.backend_report().graphs


def test_other_options_compile_anew(everything_known: pathlib.Path) -> None:
    x = torch.ones(3)
    backend.compiled(torch.relu, everything_known)(x)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        backend.compiled(torch.relu, everything_known, max_sizes=-1)(x)


def test_prepared_for_freezing(everything_known: pathlib.Path) -> None:
    """Parameters are inputs of the graph, or attributes of it: what runs is the same."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p1, self.p2 = (nn.Parameter(torch.rand(2, 3) + 1) for _ in range(2))

        @torch._dynamo.config.patch("prepare_freezing", True)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.p1 + x) / self.p2

    model, x = Model(), torch.randn(2, 3)
    fast = backend.compiled(model, everything_known)
    with torch.no_grad():
        assert testing.same(model(x), fast(x))
        model.p1.mul_(2)
        assert testing.same(model(x), fast(x))
    assert backend.tuned_operators() == {"add", "div"}


def test_several_threads(everything_known: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    fast, inputs = backend.compiled(model, everything_known), torch.randn(8, 2, 4)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return fast(x)

    with futures.ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(call, inputs))
    with torch.no_grad():
        for output, x in zip(outputs, inputs, strict=True):
            assert testing.same(output, model(x), tol=1e-4)
