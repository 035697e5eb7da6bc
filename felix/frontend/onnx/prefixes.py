"""An ONNX file cut off behind each of its nodes: what tells which node first differs."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import onnx
from google.protobuf import message as protobuf

#: Larger files are not cut.
MOST_BYTES = 1 << 30


def of(model: str | pathlib.Path | bytes) -> list[tuple[str, Callable[[], bytes]]]:
    """Each node in words, and the bytes of a file that ends with it and has its outputs.

    Nodes of outputs without a known type are left out; of a file above `MOST_BYTES` all are.
    """
    try:
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        if proto.ByteSize() > MOST_BYTES:
            return []
        inferred = onnx.shape_inference.infer_shapes(proto).graph
    except (ValueError, OSError, protobuf.DecodeError, onnx.shape_inference.InferenceError):
        return []
    types = {item.name: item for item in (*inferred.value_info, *inferred.output)}
    made: list[tuple[str, Callable[[], bytes]]] = []
    for number, node in enumerate(proto.graph.node):
        outputs = [types[name] for name in node.output if name in types]
        if outputs:
            words = f"{node.op_type} ({node.name or node.output[0]})"
            made.append((words, functools.partial(_cut, proto, number + 1, outputs)))
    return made


def _cut(proto: onnx.ModelProto, count: int, outputs: list[onnx.ValueInfoProto]) -> bytes:
    """The bytes of the first nodes of a model."""
    cut = onnx.ModelProto()
    cut.CopyFrom(proto)
    del cut.graph.node[count:], cut.graph.output[:]
    cut.graph.output.extend(outputs)
    content: bytes = cut.SerializeToString()
    return content
