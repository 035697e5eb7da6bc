"""Networks that divide and sum integers."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from onnx import TensorProto, helper

from felix import frontend, target
from felix.network import examples, groups, imported
from felix.network.contenders import excluded
from felix.network.contenders.shipping import Contender
from tests.support import networks
from tests.support.modules import Called


@pytest.mark.parametrize("operation", [torch.floor_divide, torch.remainder, torch.fmod])
def test_a_division_is_compared_with_pytorch(
    tmp_path: pathlib.Path, operation: Callable[..., torch.Tensor]
) -> None:
    model = Called(operation)
    n, d = torch.arange(-32, 32).int(), torch.arange(1, 65).int()
    fast = networks.optimize(model, (n, d), tmp_path, pytorch=True, trials=2)
    assert torch.equal(fast(n, d), model(n, d))
    fast(n, torch.zeros_like(d))  # the process goes on


def test_operands_of_contenders_have_no_divisor_of_0() -> None:
    n, d = torch.arange(-32, 32), torch.arange(1, 65)
    full = target.parse(networks.TARGET)
    network = imported.read(Called(torch.floor_divide), (n, d), {}, full)
    (group,) = groups.of(network.lowered, full)
    assert group.task is not None
    drawn = excluded.inputs(group.task)
    check = excluded.of_task(group.task, drawn)
    assert check.wrong({Contender.PYTORCH: torch.floor_divide}) == {}


def test_a_sum_without_axes(tmp_path: pathlib.Path) -> None:
    values = torch.arange(64, dtype=torch.int32)
    fast = networks.optimize(Called(torch.sum), values, tmp_path, pytorch=True, trials=2)
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
def test_drawn_divisors_of_an_onnx_file_are_1(tmp_path: pathlib.Path, operation: str) -> None:
    model = _onnx(operation)
    assert examples.divisors(frontend.import_onnx(model)) == {1}
    fast = networks.optimize(model, (), tmp_path, trials=2)
    assert [int(each[0]) for each in fast._network.examples] == [0, 1, 0]
