"""A network is the model as it was when it was optimized."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import nn

from felix import errors
from felix.network import executable
from tests.support import networks, run_py


class _Stored(nn.Module):
    """Parameters that are folded, passed on and returned, and a buffer that is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.convolution(x)).mean((2, 3))
        return self.linear(y) * self.scale, self.linear.weight


def test_later_changes_are_not_seen(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model, x = _Stored().eval(), torch.randn(1, 3, 5, 5)
    given = x.clone()
    fast = networks.optimize(model, (x,), tmp_path, trials=2)
    before = [each.clone() for each in fast(given)]
    with torch.no_grad():
        other = {name: value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(other)
    x.zero_()
    assert all(map(torch.equal, fast(given), before))
    folder = fast.export(tmp_path / "net")
    done = run_py.run(folder, "--repeats", "1")
    assert done.returncode == 0, done.stderr


def test_large_parameters_are_shared_and_their_changes_are_told(tmp_path: pathlib.Path) -> None:
    """A copy would take a network's memory twice."""
    model, x = nn.Linear(512, 600).eval(), torch.randn(1, 512)
    assert model.weight.nbytes >= executable.SHARED_BYTES > model.bias.nbytes
    fast = networks.optimize(model, (x,), tmp_path, trials=2)
    addresses = {torch.from_dlpack(each).data_ptr() for each in fast.executable.parameters}
    assert model.weight.data_ptr() in addresses and model.bias.data_ptr() not in addresses
    before = fast(x)
    with torch.no_grad():
        model.bias.add_(1)
    assert torch.equal(fast(x), before)
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    for action in (lambda: fast(x), lambda: fast.export(tmp_path / "net")):
        with pytest.raises(errors.WorkloadError, match="were changed after"):
            action()


def test_the_memory_of_parameters_may_go(tmp_path: pathlib.Path) -> None:
    model = nn.Linear(8, 8)
    fast = networks.optimize(model, torch.randn(2, 8), tmp_path, trials=2)
    tolerance = fast._network.tolerance
    assert tolerance == 1e-3 and not any(map(torch.numel, fast._network.imported.parameters))
