"""Networks for CUDA: compiled anywhere, run where a GPU is."""

from __future__ import annotations

import pathlib

import pytest
import torch
import tvm
from torch import nn

import felix
from felix import errors, target
from felix.network import assembly, cuda_graph, executable, groups, imported
from tests.support import networks

ARCH = "cuda -arch sm_80"


def _scheduled(network: imported.Network) -> list[tuple[groups.Group, assembly.Runs]]:
    """A drawn schedule of each group."""
    runs: list[tuple[groups.Group, assembly.Runs]] = []
    for group in groups.of(network.lowered, network.target):
        assert group.task is not None
        sketch = felix.sketches(group.task)[0]
        (row,) = sketch.sample(1, seed=1)
        runs.append((group, sketch.program(row)))
    return runs


def test_compiles_without_a_gpu() -> None:
    full = target.parse(ARCH)
    network = imported.read(
        nn.Sequential(nn.Linear(32, 32), nn.ReLU()), (torch.randn(32, 32),), {}, full
    )
    mod = assembly.assemble(network.lowered, _scheduled(network))
    scheduled = [func for variable, func in mod.functions_items() if variable.name_hint != "main"]
    assert all(bool(func.attrs["tirx.is_scheduled"]) for func in scheduled)
    built = executable.compile_network(mod, full)
    assert built.stats()


def test_capturing_needs_a_gpu(tmp_path: pathlib.Path) -> None:
    x = torch.randn(2, 8)
    fast = networks.optimize(nn.Linear(8, 8), (x,), tmp_path, trials=1)
    with pytest.raises(errors.TuningError, match="on a GPU"):
        cuda_graph.CapturedNetwork(fast.executable, [x])


@pytest.mark.gpu
@pytest.mark.skipif(not tvm.runtime.device("cuda", 0).exist, reason="needs an NVIDIA GPU")
def test_tuned_and_captured(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = networks.Convolutions(8).cuda().eval()
    x, other = torch.randn(2, 1, 3, 16, 16, device="cuda")
    fast = felix.optimize(
        model, (x,), trials=16, target="cuda", known_results=tmp_path / "known.sqlite"
    )
    with torch.no_grad():
        expected = model(other)
    for output, reference in zip(fast(other), expected, strict=True):
        torch.testing.assert_close(output, reference, rtol=1e-3, atol=1e-4)
    captured = cuda_graph.CapturedNetwork(fast.executable, [x])
    for output, reference in zip(captured([other]), expected, strict=True):
        torch.testing.assert_close(output, reference, rtol=1e-3, atol=1e-4)
