"""CUDA graphs of whole calls, and what PyTorch does beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from felix import errors, target
from felix.network import cuda_graph, imported, pytorch_model
from tests.support import networks

pytestmark = pytest.mark.gpu


def _drawn() -> torch.Tensor:
    return torch.randn(4, device="cuda")


def test_a_capture_that_fails_leaves_pytorch_as_it_was() -> None:
    torch.manual_seed(0)
    expected = [_drawn() for _ in range(2)]
    torch.manual_seed(0)
    stream = torch.cuda.current_stream()

    def fails() -> None:
        _drawn()
        torch.zeros(1, device="cuda").item()  # waits, which no capture allows

    with pytest.raises(errors.TuningError, match="cannot be captured"):
        cuda_graph.captured(fails)
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    for each in expected:
        assert torch.equal(_drawn(), each)
    graph, result = cuda_graph.captured(lambda: torch.ones(4, device="cuda") + 1.0)
    graph.replay()
    assert result.tolist() == [2.0] * 4


def test_a_captured_model_returns_what_the_model_returns() -> None:
    model, x = networks.Convolutions(8).cuda().eval(), torch.randn(1, 3, 16, 16, device="cuda")
    network = imported.read(model, (x,), {}, target.parse("cuda"))
    calls = pytorch_model.of(model, network.imported.calling, network.examples, 1e-3)
    assert set(calls) == {pytorch_model.EAGER, pytorch_model.GRAPH}
    graph, other = calls[pytorch_model.GRAPH], torch.randn_like(x)
    with torch.no_grad():
        expected = [model(each) for each in (x, other)]
    actual = [graph(each) for each in (x, other)]  # the second call overwrites nothing
    torch.testing.assert_close(actual, expected)
    with pytest.raises(errors.WorkloadError):
        graph(x[:, :2])


def test_a_captured_model_whose_parameters_moved_is_eager() -> None:
    model, x = nn.Linear(8, 8).cuda().eval(), torch.randn(2, 8, device="cuda")
    network = imported.read(model, (x,), {}, target.parse("cuda"))
    calls = pytorch_model.of(model, network.imported.calling, network.examples, 1e-3)
    graph = calls[pytorch_model.GRAPH]
    model.weight.data = 2.0 * model.weight.data
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(graph(x), model(x))


@pytest.mark.parametrize("clears", ["empty_cache", "workspaces", "reduce-overhead"])
def test_a_captured_model_survives_what_others_do(clears: str) -> None:
    model, x = nn.Sequential(nn.Linear(256, 256), nn.GELU()).cuda().eval(), torch.randn(64, 256)
    x = x.cuda()
    network = imported.read(model, (x,), {}, target.parse("cuda"))
    built = cuda_graph.CapturedNetwork(networks.built(network), [x])
    calls = pytorch_model.of(model, network.imported.calling, network.examples, 1e-3)
    graph = calls[pytorch_model.GRAPH]
    with torch.no_grad():
        expected = model(x)
        if clears == "empty_cache":
            torch.cuda.empty_cache()
        elif clears == "workspaces":
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        else:
            compiled = torch.compile(nn.Linear(256, 256).cuda().eval(), mode="reduce-overhead")
            for _ in range(4):
                compiled(x)
        taken = [torch.full((1024, 1024), float("nan"), device="cuda") for _ in range(32)]
    torch.testing.assert_close(graph(x), expected)
    (ours,) = built([x])
    torch.testing.assert_close(ours, expected, rtol=2e-3, atol=1e-4)
    del taken
