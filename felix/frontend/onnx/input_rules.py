"""Which inputs an ONNX operator needs, by ONNX's schemas, and which types a model's may have.

TVM's conversions read inputs that are not there as None, and some give it to native code, which
ends the process.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs

from felix import errors, names

#: Of these only the first input is required: models leave others empty against the schema, or mean
#: Microsoft's operator of the name, which takes others; TVM's conversions know it.
_LENIENT = frozenset({"Attention", "Resize", "Upsample"})

#: Element types whose values are no real numbers.
_NO_NUMBERS = (
    onnx.TensorProto.UNDEFINED,
    onnx.TensorProto.STRING,
    onnx.TensorProto.COMPLEX64,
    onnx.TensorProto.COMPLEX128,
)


def missing(node: Any, opset: int) -> str | None:
    """The first input that a node lacks and needs, in words; None if it has all.

    Args:
        node: a NodeProto.
        opset: the version of the operators of its model.
    """
    inputs = list(node.input)
    for index, name in enumerate(_required(node, opset, len(inputs))):
        if name is not None and (index >= len(inputs) or not inputs[index]):
            return f"its input {name!r}"
    return None


def _required(node: Any, opset: int, n_inputs: int) -> list[str | None]:
    """Names of the inputs by position; None for one that may be left out."""
    schema = _schema(node.op_type, opset)
    if schema is None:
        return ["1"]
    required: list[str | None] = []
    for formal in schema.inputs:
        if formal.option == defs.OpSchema.FormalParameterOption.Variadic:
            count = max(formal.min_arity, n_inputs - len(required))
            return required + [formal.name] * count
        is_required = formal.option == defs.OpSchema.FormalParameterOption.Single
        required.append(formal.name if is_required else None)
    return required[:1] if node.op_type in _LENIENT else required


def _schema(operator: str, opset: int) -> defs.OpSchema | None:
    """ONNX's schema of an operator at a version, or the newest where it is younger than that.

    TVM goes by an operator's name alone, whatever its domain and version.
    """
    for version in (max(1, min(opset, defs.onnx_opset_version())), defs.onnx_opset_version()):
        try:
            return defs.get_schema(operator, version)
        except defs.SchemaError:
            continue
    return None


def check_types(graph: Any) -> None:
    """Inputs of a graph are tensors of numbers, and it has an output.

    Raises:
        WorkloadError: they are not, or there is none.
    """
    for item in graph.input:
        kind = item.type.WhichOneof("value") or "unknown"
        element = item.type.tensor_type.elem_type
        if kind != "tensor_type":
            what = f"of the kind {kind.removesuffix('_type')}"
        elif element in _NO_NUMBERS:
            what = f"of the element type {onnx.TensorProto.DataType.Name(element).lower()}"
        else:
            continue
        raise errors.WorkloadError(
            f"the ONNX model cannot be imported: its input {names.quoted(item.name)} is {what}, "
            "not a tensor of real numbers or booleans"
        )
    if not graph.output:
        raise errors.WorkloadError("the ONNX model has no outputs: there is nothing to compute")
