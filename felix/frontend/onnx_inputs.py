"""Which inputs an ONNX operator needs, by ONNX's own schemas.

TVM's conversions read inputs that are not there as None, and some give it to native code, which
ends the process.
"""

from __future__ import annotations

from typing import Any

from onnx import defs

#: Of these only the first input is required: models leave others empty against the schema, or mean
#: Microsoft's operator of the name, which takes others; TVM's conversions know it.
_LENIENT = frozenset({"Attention", "Resize", "Upsample"})


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
