"""Small ONNX models, and such as attack who reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

#: As many bytes as the external tensors have: numbers of them come back as a shape.
SECRET = "felix_0a1b2c3d_SECRETOFTHEADMIN!"

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def tells_secret(text: str) -> bool:
    """Whether a text has the secret, as characters or as numbers."""
    data = SECRET.encode()
    numbers = struct.unpack("<4q", data) + struct.unpack("<8i", data)
    return "SECRET" in text or any(str(number) in text for number in numbers)


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A node."""
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def value(name: str, shape: Sequence[int | str] | None = None, kind: int = FLOAT) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def integers(name: str, *values: int) -> Any:
    """A tensor of integers: a shape."""
    return onnx.numpy_helper.from_array(np.array(values, "int64"), name)


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str] = ("y",), kind: int = FLOAT
) -> Any:
    """A graph; its outputs are of one kind and of any shape."""
    made = [value(name, kind=kind) for name in outputs]
    return helper.make_graph(list(nodes), "g", list(inputs), made)


def model(
    nodes: Sequence[Any],
    initializers: Sequence[Any] = (),
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    kind: int = FLOAT,
) -> Any:
    """A model whose one input is x[4, 8], unless others are given."""
    made = graph(nodes, [value("x", [4, 8])] if inputs is None else inputs, outputs, kind)
    made.initializer.extend(initializers)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def one(
    operator: str, *arrays: np.ndarray, known: int = 0, opset: int = 23, **options: Any
) -> Any:
    """A model of one node whose last so many operands are known."""
    names = [f"x{i}" for i in range(len(arrays))]
    split = len(arrays) - known
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    tensors = [onnx.numpy_helper.from_array(*each) for each in zip(arrays, names, strict=True)]
    inputs = [
        value(n, a.shape, k) for n, a, k in list(zip(names, arrays, kinds, strict=True))[:split]
    ]
    made = node(operator, names, ["y"], **options)
    return model([made], tensors[split:], inputs, kind=onnx.TensorProto.UNDEFINED, opset=opset)


def matmul_relu() -> bytes:
    """A right model of two operators, serialized."""
    nodes = [node("MatMul", ["x", "w"], ["z"]), node("Relu", ["z"], ["y"])]
    inputs, outputs = [value("x", [4, 8]), value("w", [8, 16])], [value("y", [4, 16])]
    made = helper.make_model(
        helper.make_graph(nodes, "net", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(made)
    content: bytes = made.SerializeToString()
    return content


def products(
    layers: Sequence[str],
    weights: dict[str, tuple[int, int]],
    rows: int | str = "n",
    number: float = 0.5,
) -> bytes:
    """x[rows, k] times one weight after the other with a ReLU after each, serialized."""
    nodes, last = [], "x"
    for i, weight in enumerate(layers):
        product, relu = f"p{i}", f"r{i}" if i < len(layers) - 1 else "y"
        nodes += [node("MatMul", [last, weight], [product]), node("Relu", [product], [relu])]
        last = relu
    tensors = [
        onnx.numpy_helper.from_array(np.full(shape, number, "float32"), name)
        for name, shape in weights.items()
    ]
    content: bytes = model(
        nodes, tensors, [value("x", [rows, weights[layers[0]][0]])]
    ).SerializeToString()
    return content


def product() -> bytes:
    """x -> relu(x W), serialized."""
    return products("w", {"w": (8, 8)}, 4, 0.1)


def external(location: str, dims: Sequence[int] = (1, 8), name: str = "w") -> Any:
    """A tensor whose data are a file's."""
    tensor = onnx.TensorProto(name=name, data_type=FLOAT, dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _initializer(location: str) -> Any:
    return model([node("Add", ["x", "w"], ["y"])], [external(location)])


def _shape(location: str) -> Any:
    """Bytes of the file become a shape, which messages of the importer quote."""
    tensor = external(location, [4])
    tensor.data_type = INT64
    return model([node("Reshape", ["x", "w"], ["y"])], [tensor])


def _constant(location: str) -> Any:
    constant = node("Constant", [], ["c"], value=external(location))
    return model([constant, node("Add", ["x", "c"], ["y"])])


def _tensors(location: str) -> Any:
    relu = node("Relu", ["x"], ["y"])
    relu.attribute.add(name="t", type=onnx.AttributeProto.TENSORS).tensors.append(
        external(location)
    )
    return model([relu])


def _branch(location: str) -> Any:
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = graph([node("Add", ["x", "w"], ["y"])], [])
        inner.initializer.append(external(location))
        branches[name] = inner
    return model(
        [node("If", ["c"], ["y"], **branches)], inputs=[value("x", [4, 8]), value("c", [], BOOL)]
    )


def _graphs(location: str) -> Any:
    relu = node("Relu", ["x"], ["y"])
    inner = graph([node("Add", ["x", "w"], ["y"])], [])
    inner.initializer.append(external(location))
    relu.attribute.add(name="bodies", type=onnx.AttributeProto.GRAPHS).graphs.append(inner)
    return model([relu])


def _sparse_values(location: str) -> Any:
    made = model([node("Add", ["x", "w"], ["y"])])
    sparse = made.graph.sparse_initializer.add(dims=[4, 8])
    sparse.values.CopyFrom(external(location))
    sparse.indices.CopyFrom(integers("i", 1))
    return made


def _sparse_indices(location: str) -> Any:
    sparse = onnx.SparseTensorProto(dims=[4, 8])
    sparse.values.CopyFrom(integers("v", 1))
    sparse.indices.CopyFrom(external(location))
    return model([node("Constant", [], ["y"], sparse_value=sparse)])


def _function(location: str) -> Any:
    made = model([node("Relu", ["x"], ["y"])])
    body = node("Constant", [], ["o"], value=external(location))
    made.functions.append(
        helper.make_function("d", "f", [], ["o"], [body], [helper.make_opsetid("", 17)])
    )
    return made


def _training(location: str) -> Any:
    made = model([node("Relu", ["x"], ["y"])])
    made.training_info.add().initialization.initializer.append(external(location))
    return made


def _entry_alone(location: str) -> Any:
    """The location without the mark that there is one."""
    tensor = external(location)
    tensor.data_location = onnx.TensorProto.DEFAULT
    return model([node("Add", ["x", "w"], ["y"])], [tensor])


def _mark_alone(location: str) -> Any:
    tensor = external(location)
    del tensor.external_data[:]
    return model([node("Add", ["x", "w"], ["y"])], [tensor])


#: By where the external data are: location -> model.
EXTERNAL: dict[str, Callable[[str], Any]] = {
    "initializer": _initializer,
    "shape": _shape,
    "constant": _constant,
    "tensors": _tensors,
    "branch": _branch,
    "graphs": _graphs,
    "sparse_values": _sparse_values,
    "sparse_indices": _sparse_indices,
    "function": _function,
    "training": _training,
    "entry_alone": _entry_alone,
    "mark_alone": _mark_alone,
}
