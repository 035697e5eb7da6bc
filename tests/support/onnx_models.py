"""Small ONNX models."""

from __future__ import annotations


def product() -> bytes:
    """x -> relu(x W)."""
    import onnx

    make = onnx.helper
    value, kind = make.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node("MatMul", ["x", "w"], ["a"]), make.make_node("Relu", ["a"], ["y"])],
        "net",
        [value("x", kind, [4, 8])],
        [value("y", kind, [4, 8])],
        [make.make_tensor("w", kind, [8, 8], [0.1] * 64)],
    )
    content: bytes = make.make_model(
        graph, opset_imports=[make.make_opsetid("", 17)]
    ).SerializeToString()
    return content
