"""Which inputs an ONNX operator needs, by ONNX's own schemas.

TVM's conversions read inputs that are not there as None, and some give it to native code, which
ends the process.
"""

from __future__ import annotations

from typing import Any

from onnx import defs

#: Of these only the first input is needed: models leave others empty against the schema, or mean
#: Microsoft's operator of the name, which takes others; TVM's conversions know it.
_LENIENT = frozenset({"Attention", "Resize", "Upsample"})


def missing(node: Any, opset: int) -> str | None:
    """The first input that a node lacks and needs, in words; None if it has all.

    Args:
        node: a NodeProto.
        opset: the version of the operators of its model.
    """
    given = list(node.input)
    for index, name in enumerate(_needed(node, opset, len(given))):
        if name is not None and (index >= len(given) or not given[index]):
            return f"its input {name!r}"
    return None


def _needed(node: Any, opset: int, n_given: int) -> list[str | None]:
    """Names of the inputs by position; None for one that may be left out."""
    schema = _schema(node.op_type, opset)
    if schema is None:
        return ["1"]
    needed: list[str | None] = []
    for formal in schema.inputs:
        if formal.option == defs.OpSchema.FormalParameterOption.Variadic:
            count = max(formal.min_arity, n_given - len(needed))
            return needed + [formal.name] * count
        is_needed = formal.option == defs.OpSchema.FormalParameterOption.Single
        needed.append(formal.name if is_needed else None)
    return needed[:1] if node.op_type in _LENIENT else needed


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
