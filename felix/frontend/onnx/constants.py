"""Small integer values of an ONNX model that are known when it is imported: shapes, above all.

Exporters compute shapes by nodes: the shape of a tensor, parts of it, products, concatenations.
TVM converts some of these to calls whose result it does not know, so that tensors lose their rank.
Here a node is computed at once where its inputs are known integers or booleans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

#: Elements of the largest value that is computed.
MAX_ELEMENTS = 1024
_Arrays = Sequence[Any]
#: ONNX's numbers of integer types and of bool.
_DTYPES = {2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool"}


def fold(importer: Any, operator: str, inputs: Any, attributes: Mapping[str, Any]) -> Any:
    """A node's value as a constant; None where it is not known or no such integer."""
    compute = _OPERATORS.get(operator)
    if compute is None:
        return None
    tables = [importer._nodes, importer._params]
    values = [inputs[index] for index in range(len(inputs))]
    arrays = [known(value, tables) for value in values]
    if any(
        array is None and value is not None for array, value in zip(arrays, values, strict=True)
    ):
        return None
    try:
        result = compute(arrays, attributes)
    except (ValueError, IndexError, ZeroDivisionError, TypeError, OverflowError):
        return None  # TVM's conversion says what is wrong
    if result is None or result.size > MAX_ELEMENTS or result.dtype.kind not in "iub":
        return None
    return relax.const(np.array(result, order="C"), str(result.dtype))


def known(value: Any, tables: Sequence[Any]) -> Any:
    """A small integer value as an array; None where it is not known."""
    if isinstance(value, tvm.tirx.IntImm):
        return np.array(int(value), "int64")
    if isinstance(value, relax.ShapeExpr):
        extents = list(value)
        if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
            return None
        return np.array([int(extent) for extent in extents], "int64")
    if not _is_small_integer(getattr(value, "ty", None)):
        return None
    return array(value, tables)


def array(value: Any, tables: Sequence[Any]) -> Any:
    """The value of an initializer or a constant; None where it is not known."""
    constant = None if value is None else onnx_frontend.get_constant(value, tables)
    return constant.value.numpy() if isinstance(constant, tvm.ir.GenericConst) else None


def _is_small_integer(kind: Any) -> bool:
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return False
    extents = list(kind.shape)
    return (
        str(kind.dtype).startswith(("int", "uint", "bool"))
        and all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
        and math.prod(int(extent) for extent in extents) <= MAX_ELEMENTS
    )


def _divided(arrays: _Arrays, _: Mapping[str, Any]) -> Any:
    """ONNX's division of integers rounds towards 0."""
    dividend, divisor = arrays
    if not np.all(divisor):
        raise ZeroDivisionError
    quotient = np.abs(dividend) // np.abs(divisor) * np.sign(dividend) * np.sign(divisor)
    return quotient.astype(dividend.dtype)


def _remainder(arrays: _Arrays, attributes: Mapping[str, Any]) -> Any:
    dividend, divisor = arrays
    if not np.all(divisor):
        raise ZeroDivisionError
    return (np.fmod if attributes.get("fmod", 0) else np.mod)(dividend, divisor)


def _sliced(arrays: _Arrays, _: Mapping[str, Any]) -> Any:
    data, starts, ends, axes, steps = [*arrays, None, None][:5]
    axes = range(len(starts)) if axes is None else axes
    parts = [slice(None)] * data.ndim
    for index, axis in enumerate(axes):
        step = 1 if steps is None else int(steps[index])
        start, end = int(starts[index]), int(ends[index])
        # A negative end of a negative step that is below all elements means the first one.
        last = None if step < 0 and end < -data.shape[axis] else end
        parts[int(axis)] = slice(start, last, step)
    return data[tuple(parts)]


def _expanded(arrays: _Arrays, attributes: Mapping[str, Any]) -> Any:
    """A new axis at each of the second input's or the attribute's places."""
    data = arrays[0]
    places: Any = arrays[1] if len(arrays) > 1 else attributes.get("axes")
    return np.expand_dims(data, tuple(int(place) for place in places))


def _squeezed(arrays: _Arrays, attributes: Mapping[str, Any]) -> Any:
    places: Any = arrays[1] if len(arrays) > 1 else attributes.get("axes")
    return np.squeeze(arrays[0], None if places is None else tuple(int(p) for p in places))


def _cast(arrays: _Arrays, attributes: Mapping[str, Any]) -> Any:
    dtype = _DTYPES.get(int(attributes["to"]))
    return None if dtype is None else arrays[0].astype(dtype)


def _filled(arrays: _Arrays, attributes: Mapping[str, Any]) -> Any:
    """A constant of the shape that the input is; by default it is of floats."""
    value = attributes.get("value")
    if value is None or int(arrays[0].prod()) > MAX_ELEMENTS:
        return None
    return np.full(arrays[0], onnx_frontend.get_numpy(value).reshape(()))


#: ONNX's operators -> the arrays of their inputs and their attributes to their value.
_OPERATORS: Mapping[str, Callable[[_Arrays, Mapping[str, Any]], Any]] = {
    "Add": lambda arrays, _: arrays[0] + arrays[1],
    "Cast": _cast,
    "Concat": lambda arrays, attributes: np.concatenate(arrays, attributes["axis"]),
    "ConstantOfShape": _filled,
    "Div": _divided,
    "Equal": lambda arrays, _: np.asarray(arrays[0] == arrays[1]),
    "Gather": lambda arrays, attributes: np.take(arrays[0], arrays[1], attributes.get("axis", 0)),
    "Identity": lambda arrays, _: arrays[0],
    "Mod": _remainder,
    "Mul": lambda arrays, _: arrays[0] * arrays[1],
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Sub": lambda arrays, _: arrays[0] - arrays[1],
    "Unsqueeze": _expanded,
    "Where": lambda arrays, _: np.where(*arrays),
}
