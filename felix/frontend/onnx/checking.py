"""A node of a model against ONNX: before it is converted, and what it became."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from felix import errors
from felix.frontend.onnx import constants, resizing, rules, schemas
from felix.frontend.onnx.node import Node, UnknownValue

#: Operators whose results are as long as data say: they can be outputs of a model.
_OF_DATA = frozenset({"Compress", "NonZero", "Unique"})


def check_rules(node: Node) -> None:
    """A node keeps to the text of its operator.

    Raises:
        WorkloadError: it does not.
    """
    shapes = [schemas.shape_of(_onnx_type(each)) for each in node.given]
    if (wrong := rules.broken(node.operator, shapes, node.attributes.data)) is not None:
        raise errors.WorkloadError(wrong)


def expected(node: Node, proto: Any) -> dict[str, Any]:
    """Types of a node's values by ONNX.

    Raises:
        WorkloadError: ONNX does not define it for its operands and attributes.
    """
    types = list(map(_onnx_type, node.given))
    values = {i: constants.small(each, node.tables) for i, each in enumerate(node.given)}
    known = {i: value for i, value in values.items() if value is not None}
    try:
        return schemas.inferred(proto, node.opset, types, known)
    except schemas.UndefinedNode as error:
        raise errors.WorkloadError(
            f"ONNX's operator is not defined for {_operands(node)}"
        ) from error


def _onnx_type(value: Any) -> Any:
    """The TypeProto of a value; None of one that is left out, or of none."""
    if isinstance(value, relax.ShapeExpr):
        return schemas.type_of("int64", [len(value)])
    kind = getattr(value, "ty", None)
    return schemas.type_of(*_parts_of(kind)) if isinstance(kind, relax.TensorType) else None


def _parts_of(kind: Any) -> tuple[str, list[int | None] | None]:
    """The element type of a tensor's type, and its extents; None for those that are open."""
    if not isinstance(kind.shape, relax.ShapeExpr):
        return str(kind.dtype), None
    extents = [int(e) if isinstance(e, tvm.tirx.IntImm) else None for e in kind.shape]
    return str(kind.dtype), extents


def unsupported(node: Node) -> errors.WorkloadError:
    """An error that says of what types and attributes a node is."""
    return errors.WorkloadError(f"it is not supported for {_operands(node)}")


def _operands(node: Node) -> str:
    """What a node is of, in a message."""
    types = ", ".join(_type(each) for each in node.given if each is not None)
    given = sorted(set(node.attributes) - {"tvm_custom"})
    attributes = f" and the attributes {', '.join(given)}" if given else ""
    return f"operands of {types or 'no types'}{attributes}"


def is_parameter(node: Node, index: int, operand: Any) -> bool:
    """Whether an operand is small, as those are that say how a node computes, and not known."""
    shape = getattr(operand.ty, "shape", None)
    is_small = isinstance(shape, relax.ShapeExpr) and len(shape) < 2
    return is_small and node.known(index) is None


def _type(value: Any) -> str:
    kind = value.ty
    dtype, extents = _parts_of(kind) if isinstance(kind, relax.TensorType) else ("", None)
    if extents is None:
        return "an open shape"
    return f"{dtype} ({', '.join('?' if each is None else str(each) for each in extents)})"


def check_values(node: Node, values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Values have the types and shapes that ONNX says.

    Raises:
        WorkloadError: one has another.
    """
    if node.operator in resizing.OPERATORS:  # ONNX rounds their extents otherwise
        return
    if any(differs(types[name], values[name]) for name in values.keys() & types.keys()):
        raise unsupported(node)


def differs(expected: Any, value: Any, has_shape: bool = True) -> bool:
    """Whether a value is of another type than a TypeProto, or of another shape."""
    kind = getattr(value, "ty", None)
    if not isinstance(kind, relax.TensorType):
        return False
    dtype, shape = _parts_of(kind)
    return schemas.conflicts(expected, dtype, shape if has_shape else None)


def misdeclared(kind: Any, value: Any) -> str | None:
    """What a model says of the element type of a value, where it is another.

    What it says of shapes is often wrong, and nobody minds.
    """
    actual = _onnx_type(value)
    if kind is None or actual is None or not kind.tensor_type.elem_type:
        return None
    declared, computed = (schemas.type_name(each.tensor_type.elem_type) for each in (kind, actual))
    return None if declared == computed else f"{computed}, and the model declares {declared}"


def check_shapes(node: Node, values: list[Any]) -> None:
    """Shapes of results are known, where those of the operands are.

    Raises:
        UnknownValue: a shape follows from the value of an operand.
    """
    if (
        node.operator in _OF_DATA
        or not any(map(_is_open, values))
        or any(map(_is_open, node.given))
    ):
        return
    for index, operand in enumerate(node.given):
        if operand is not None and node.known(index) is None:
            if index or is_parameter(node, index, operand):
                raise UnknownValue(index, node.formal(index))
    raise errors.WorkloadError("the shape of its result follows from data")


def _is_open(value: Any) -> bool:
    """Whether a value is a tensor of an open shape."""
    kind = getattr(value, "ty", None)
    extents = _parts_of(kind)[1] if isinstance(kind, relax.TensorType) else []
    return extents is None or None in extents
