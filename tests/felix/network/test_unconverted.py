"""Operators that TVM does not convert rightly, which PyTorch runs; integers divided and summed."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional

from felix import frontend
from felix.network import imported
from felix.network.contenders import excluded
from felix.network.contenders.shipping import Contender
from tests.support import networks, run_py
from tests.support.modules import Called


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
    everything_known: pathlib.Path, call: Callable[..., Any], fusion: str, left: dict[str, int]
) -> None:
    model = Model(call).eval()
    fast = networks.optimize(model, torch.randn(8, 8), everything_known, fusion=fusion)
    assert fast.report.pytorch == left and fast.report.to_json()["pytorch"] == left
    for name in left:
        assert f"runs in PyTorch: {name}: TVM does not import it" in str(fast.report)
    assert any(each.group.task is not None for each in fast.report.groups)  # the rest is tuned
    networks.assert_same(fast, model, torch.randn(8, 8))


@pytest.mark.parametrize("call", [_windows, _any_of_each])
def test_what_tvm_converts_rightly_is_not_left(
    everything_known: pathlib.Path, call: Callable[..., Any]
) -> None:
    model, x = Model(call).eval(), torch.randn(8, 8)
    fast = networks.optimize(model, x, everything_known)
    assert not fast.report.pytorch
    networks.assert_same(fast, model, x)


def test_the_artifact_runs_it_without_felix(everything_known: pathlib.Path) -> None:
    fast = networks.optimize(Model(_middle).eval(), torch.randn(8, 8), everything_known)
    folder = fast.export(everything_known / "net")
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


# ----------------------------------------------------------- networks that divide and sum integers


@pytest.mark.parametrize("operation", [torch.floor_divide, torch.remainder, torch.fmod])
def test_a_division_is_compared_with_pytorch(
    everything_known: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: Callable[..., torch.Tensor],
) -> None:
    networks.timed_wholes(monkeypatch, 0.5)  # the model itself raises
    model = Called(operation)
    n, d = torch.arange(-32, 32).int(), torch.arange(1, 65).int()
    fast = networks.optimize(model, (n, d), everything_known, pytorch=True)
    assert torch.equal(fast(n, d), model(n, d))
    fast(n, torch.zeros_like(d))  # the process goes on


def test_operands_of_contenders_have_no_divisor_of_0() -> None:
    n, d = torch.arange(-32, 32), torch.arange(1, 65)
    _, group = networks.of_one_group(Called(torch.floor_divide), n, d)
    drawn = excluded.inputs(group.task)
    check = excluded.of_task(group.task, drawn)
    assert check.wrong({Contender.PYTORCH: torch.floor_divide}) == {}


def test_a_sum_without_axes(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_wholes(monkeypatch, 0.5)
    values = torch.arange(64, dtype=torch.int32)
    fast = networks.optimize(Called(torch.sum), values, everything_known, pytorch=True)
    assert torch.equal(fast(values), values.sum())


def _onnx(operation: str) -> bytes:
    """n / (d * d), and a table that is indexed by i."""
    n, d, i = (helper.make_tensor_value_info(x, TensorProto.INT64, [4]) for x in "ndi")
    results = [helper.make_tensor_value_info(x, TensorProto.INT64, [4]) for x in ("y", "z")]
    table = helper.make_tensor("table", TensorProto.INT64, [1], [3])
    nodes = [
        helper.make_node("Mul", ["d", "d"], ["square"]),
        helper.make_node(operation, ["n", "square"], ["y"]),
        helper.make_node("Gather", ["table", "i"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "graph", [n, d, i], results, [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("operation", ["Div", "Mod"])
def test_drawn_divisors_of_an_onnx_file_are_1(
    everything_known: pathlib.Path, operation: str
) -> None:
    model = _onnx(operation)
    assert imported.divisors(frontend.import_onnx(model)) == {1}
    fast = networks.optimize(model, (), everything_known)
    assert [int(each[0]) for each in fast._network.examples] == [0, 1, 0]
