"""Odd models: a right result, or one error that says what is wrong and what to do."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from felix import errors, frontend
from tests.support import networks
from tests.support.modules import Called

onnx = pytest.importorskip("onnx")
make = onnx.helper
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def tensor(name: str, shape: Sequence[Any] | None = (3, 4), kind: int = FLOAT) -> Any:
    return make.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    version: int = 17,
) -> bytes:
    graph = make.make_graph(nodes, "net", inputs, outputs, weights)
    opset = [make.make_opsetid("", version)]
    content: bytes = make.make_model(graph, opset_imports=opset).SerializeToString()
    return content


def node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **more: Any
) -> Any:
    return make.make_node(operator, inputs, outputs, **more)


def branch(operator: str, name: str) -> Any:
    return make.make_graph([node(operator, ["x", "x"], [name])], name, [], [tensor(name)])


WEIGHT = make.make_tensor("w", FLOAT, [4, 4], [0.5] * 16)
BRANCHES = {"then_branch": branch("Mul", "a"), "else_branch": branch("Add", "b")}
RELU = [node("Relu", ["x"])]

REFUSED: dict[str, tuple[bytes, dict[str, list[int]], str]] = {
    "empty file": (b"", {}, "the ONNX file is empty"),
    "open extent": (
        model(RELU, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])]), {},
        r"leaves extent 0 \('n'\) open: give the shape of this input in `shapes`",
    ),
    "open rank": (
        model(RELU, [tensor("x", None)], [tensor("y", None)]), {},
        "input 'x' of the ONNX model leaves its shape open: give the shape",
    ),
    "no elements": (
        model(RELU, [tensor("x", [0, 4])], [tensor("y", [0, 4])]), {},
        "input 'x' of the ONNX model has an extent of 0",
    ),
    "shape without elements": (
        model(RELU, [tensor("x", ["n", 4])], [tensor("y", ["n", 4])]), {"x": [0, 4]},
        "shapes: an extent of the input 'x' is below 1",
    ),
    "text": (
        model([node("Identity", ["x"])], [tensor("x", [3], onnx.TensorProto.STRING)],
              [tensor("y", [3], onnx.TensorProto.STRING)]), {},
        "its input 'x' is of the element type string",
    ),
    "sequence": (
        model([node("SequenceAt", ["x", "i"])],
              [make.make_tensor_sequence_value_info("x", FLOAT, [3]), tensor("i", [], INT64)],
              [tensor("y", [3])]), {},
        "unsupported operators 'SequenceAt'|its input 'x' is of the kind sequence",
    ),
    "no output": (model(RELU, [tensor("x")], []), {}, "has no outputs"),
    "node without a name": (
        model([node("MatMul", ["x", "w"])], [tensor("x", [3, 5])], [tensor("y")], [WEIGHT]), {},
        r"the node 'y' \(operator 'MatMul'\): ONNX's operator is not defined for .* of float32",
    ),
    "attribute that is not read": (
        model([node("Relu", ["x"], max=6.0)], [tensor("x")], [tensor("y")]), {},
        r"\(operator 'Relu'\) of the ONNX model has the attribute 'max', which opset 17 does",
    ),
    "attribute that does not exist": (
        model([node("Relu", ["x"], alpha=0.5)], [tensor("x")], [tensor("y")]), {},
        r"\(operator 'Relu'\) of the ONNX model has the attribute 'alpha', which opset 17 does",
    ),
    "opset of the future": (
        model(RELU, [tensor("x")], [tensor("y")], version=99), {}, r"its opset is 99, \d+ is the",
    ),
    "loop": (
        model([node("Det", ["x"])], [tensor("x", [4, 4])], [tensor("y", [])]), {},
        "unsupported operators 'Det'",
    ),
    "computed branch": (
        model([node("ReduceSum", ["x"], ["r"], keepdims=0), node("Cast", ["r"], ["c"], to=9),
               node("If", ["c"], **BRANCHES)], [tensor("x")], [tensor("y")]), {},
        "'If' has a condition that the model computes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_onnx_model_is_refused_with_one_error(name: str) -> None:
    content, shapes, message = REFUSED[name]
    with pytest.raises(errors.WorkloadError, match=message) as raised:
        frontend.import_onnx(content, shapes or None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("takes_branch", [True, False])
def test_a_branch_by_an_input(tmp_path: pathlib.Path, takes_branch: bool) -> None:
    inputs = [tensor("x"), tensor("c", [], onnx.TensorProto.BOOL)]
    path = tmp_path / "net.onnx"
    path.write_bytes(model([node("If", ["c"], **BRANCHES)], inputs, [tensor("y")]))
    fast = networks.optimize(str(path), (), tmp_path, trials=1)
    x = torch.full((3, 4), 3.0)
    assert torch.equal(fast(x, torch.tensor(takes_branch)), x * x if takes_branch else x + x)


@pytest.mark.parametrize("operator", ["Identity", "Relu"])
@pytest.mark.parametrize("more", [False, True])
def test_outputs_of_weights_alone(tmp_path: pathlib.Path, operator: str, more: bool) -> None:
    nodes, outputs = [node(operator, ["w"])], [tensor("y", [4, 4])]
    if more:
        nodes, outputs = [*nodes, node("Neg", ["x"], ["z"])], [*outputs, tensor("z")]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, [tensor("x")], outputs, [WEIGHT]))
    fast = networks.optimize(str(path), (), tmp_path, trials=1)
    x = torch.randn(3, 4)
    result = fast(x)
    first, *others = result if isinstance(result, tuple) else (result,)
    np.testing.assert_array_equal(first.numpy(), np.full((4, 4), 0.5, np.float32))
    assert len(others) == more and all(torch.equal(each, -x) for each in others)


@pytest.mark.parametrize(
    ("call", "x", "message"),
    [
        (lambda x: x[x > 0] * 2, torch.randn(4), "'aten.index.Tensor' has a shape that depends"),
        (torch.nonzero, torch.randn(4), "'aten.nonzero.default' has a shape that depends"),
        (lambda x: x * 2 if x.sum() > 0 else x, torch.randn(4), "use torch.where in place of"),
        (torch.rand_like, torch.randn(4), "'aten.rand_like.default' may draw random numbers"),
        (lambda x: torch.fft.fft(x).abs(), torch.randn(4), "element type torch.complex64"),
        (lambda x: x + 1, torch.randn(4, dtype=torch.complex64), "the input .* torch.complex64"),
        (lambda x: x.float(), torch.randn(4).to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (lambda x: x.to_dense(), torch.eye(3).to_sparse(), "is torch.sparse_coo, not dense"),
        (lambda x: None, torch.randn(4), "it returns no tensor that it computes"),
        (lambda x: x.add_(1), torch.randn(4), "it changes the input"),
    ],
)
def test_a_pytorch_model_is_refused_with_one_error(
    call: Callable[..., Any], x: torch.Tensor, message: str
) -> None:
    with pytest.raises(errors.WorkloadError, match=message) as raised:
        frontend.import_torch(Called(call), (x,))
    assert "\n" not in str(raised.value)
