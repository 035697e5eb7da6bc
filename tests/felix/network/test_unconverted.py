"""Operators that TVM does not convert, or not rightly: PyTorch runs them inside the network."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from felix import frontend
from tests.support import networks, run_py


class Model(nn.Module):
    """A function of a model with a layer and a weight."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call
        self.layer = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self, x)


def _middle(model: Model, x: torch.Tensor) -> torch.Tensor:
    values, _ = torch.kthvalue(model.layer(x), 2, keepdim=True)
    return torch.relu(model.layer(values + x))


def _both_results(model: Model, x: torch.Tensor) -> Any:
    return torch.kthvalue(torch.relu(model.layer(x)), 2)


def _distances(model: Model, x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.cdist(model.layer(x), model.weight), -1)


def _places(model: Model, x: torch.Tensor) -> torch.Tensor:
    return 2 * torch.searchsorted(model.weight.sort(-1).values, model.layer(x)).float()


def _smoothed(model: Model, x: torch.Tensor) -> torch.Tensor:
    size = {"size": (3, 3), "mode": "bilinear", "antialias": True}
    return functional.interpolate(model.layer(x)[None, None], **size).relu()


def _scaled(model: Model, x: torch.Tensor) -> torch.Tensor:
    return torch.add(model.layer(x), x, alpha=-3).relu()


def _divided(model: Model, x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(model.layer(x)[None], 2, divisor_override=3).relu()


def _windows(model: Model, x: torch.Tensor) -> torch.Tensor:
    return functional.unfold(model.layer(x)[None, None], 3).relu()


def _any_of_each(model: Model, x: torch.Tensor) -> torch.Tensor:
    return torch.any(model.layer(x) > 1, -1)


CASES = [
    (_middle, "rules", {"aten.kthvalue.default": 1}),
    (_both_results, "rules", {"aten.kthvalue.default": 2}),
    (_both_results, "planned", {"aten.kthvalue.default": 2}),
    (_distances, "planned", {"aten._cdist_forward.default": 1}),
    (_places, "planned", {"aten.searchsorted.Tensor": 1}),
    (_smoothed, "rules", {"aten._upsample_bilinear2d_aa.default": 1}),
    (_divided, "rules", {"aten.avg_pool2d.default": 1}),
    (_scaled, "planned", {"aten.add.Tensor": 1}),  # whose factor TVM drops
]


@pytest.mark.parametrize(("call", "fusion", "left"), CASES)
def test_pytorch_runs_it_inside_of_the_network(
    tmp_path: pathlib.Path, call: Callable[..., Any], fusion: str, left: dict[str, int]
) -> None:
    model = Model(call).eval()
    fast = networks.optimize(model, torch.randn(8, 8), tmp_path, trials=2, fusion=fusion)
    assert fast.report.pytorch == left and fast.report.to_json()["pytorch"] == left
    (name,) = left
    assert f"runs in PyTorch: {name}: TVM does not import it" in str(fast.report)
    assert any(each.group.task is not None for each in fast.report.groups)  # the rest is tuned
    x = torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("call", [_windows, _any_of_each])
def test_what_tvm_converts_rightly_is_not_left(
    tmp_path: pathlib.Path, call: Callable[..., Any]
) -> None:
    model, x = Model(call).eval(), torch.randn(8, 8)
    fast = networks.optimize(model, x, tmp_path, trials=1)
    assert not fast.report.pytorch
    with torch.no_grad():
        expected = model(x)
    assert fast(x).dtype == expected.dtype
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4)


def test_the_artifact_runs_it_without_felix(tmp_path: pathlib.Path) -> None:
    fast = networks.optimize(Model(_middle).eval(), torch.randn(8, 8), tmp_path, trials=1)
    folder = fast.export(tmp_path / "net")
    done = run_py.run(folder, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["max_error"] <= 1e-4


def test_tasks_are_those_of_the_rest() -> None:
    tasks = frontend.extract_tasks(Model(_middle), (torch.randn(8, 8),), networks.TARGET)
    assert sorted(each.name.count("matmul") for each in tasks) == [1, 1]


def test_a_network_of_nothing_else(tmp_path: pathlib.Path) -> None:
    fast = networks.optimize(Model(lambda _, x: torch.kthvalue(x, 2)), torch.randn(8, 8), tmp_path)
    x = torch.randn(8, 8)
    assert fast(x)[0].equal(torch.kthvalue(x, 2).values)
    assert not fast.report.groups
