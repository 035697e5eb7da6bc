"""Conversions of ONNX operators that TVM lacks, or whose values it computes otherwise.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend import attention
from felix.frontend.onnx import constants, recurrent, resizing

#: Beyond it softplus(x) is x in float64, too.
_LINEAR = 40.0


def convert(
    importer: Any,
    unroller: recurrent.Unroller,
    operator: str,
    inputs: Any,
    attributes: Mapping[str, Any],
) -> Any:
    """The Relax expression of a node, or None where TVM's own conversion holds.

    Raises:
        WorkloadError: inputs or attributes that are not supported.
    """
    if operator in recurrent.GATES:
        return unroller.convert(operator, inputs, attributes)
    if operator in resizing.OPERATORS:
        return resizing.convert(importer, operator, inputs, attributes)
    if operator in _OWN:
        return _OWN[operator](importer, inputs, attributes)
    # Microsoft's operator of the name must have `num_heads`, ONNX's has no such attribute.
    if operator == "Attention" and "num_heads" not in attributes:
        return _attention(importer.bb, inputs, attributes)
    return None


def _expand(importer: Any, inputs: Any, _: Mapping[str, Any]) -> Any:
    """A tensor of a known shape; TVM knows that of an initializer only when it is told."""
    shape = constants.known(inputs[1], [importer._nodes, importer._params])
    if shape is None:
        return None
    extents = [int(extent) for extent in inputs[0].ty.shape]
    # -1 is no extent of ONNX, but exporters write it for one that stays.
    target = np.broadcast_shapes([1 if extent == -1 else int(extent) for extent in shape], extents)
    if list(target) == extents:
        return inputs[0]
    return importer.bb.emit(relax.op.broadcast_to(inputs[0], target))


def _one_hot(importer: Any, inputs: Any, attributes: Mapping[str, Any]) -> Any:
    """The values [off, on] by index, in the type of the values, which TVM does not keep."""
    emit = importer.bb.emit
    tables = [importer._nodes, importer._params]
    indices, depth, values = (inputs[i] for i in range(3))
    number = constants.array(depth, tables)
    if number is None:
        raise errors.WorkloadError("the depth is not known")
    count, dtype = int(number.reshape(())), "int64"
    rank = len(indices.ty.shape) + 1
    axis = int(attributes.get("axis", -1)) % rank
    if str(indices.ty.dtype) != dtype:
        indices = emit(relax.op.astype(indices, dtype))
    is_negative = emit(relax.op.less(indices, relax.const(0, dtype)))
    behind = emit(relax.op.add(indices, relax.const(count, dtype)))
    indices = emit(relax.op.expand_dims(emit(relax.op.where(is_negative, behind, indices)), axis))
    places = np.arange(count).reshape([-1] + [1] * (rank - axis - 1))
    is_on = emit(relax.op.equal(indices, relax.const(places, dtype)))
    off, on = _pair(importer, values)
    return emit(relax.op.where(is_on, on, off))


def _pair(importer: Any, values: Any) -> list[Any]:
    """The two elements of a tensor, as constants where they are known."""
    known = constants.array(values, [importer._nodes, importer._params])
    if known is not None:
        return [relax.const(number, str(values.ty.dtype)) for number in known]
    parts = [relax.op.strided_slice(values, [0], [i], [i + 1]) for i in range(2)]
    return [importer.bb.emit(part) for part in parts]


def _softplus(importer: Any, inputs: Any, _: Mapping[str, Any]) -> Any:
    """log(1 + exp(x)), which TVM would write as a sum that loses small results."""
    return importer.bb.emit(relax.op.nn.softplus(inputs[0], 1.0, _LINEAR))


def _attention(bb: Any, inputs: Any, attributes: Mapping[str, Any]) -> Any:
    """ONNX's attention of [b, h, s, d]."""
    query, key, value, mask = (inputs[i] for i in range(4))
    if any(tensor is None for tensor in (query, key, value)):
        raise errors.WorkloadError("attention needs queries, keys and values")
    if any(inputs[i] is not None for i in range(4, 7)):
        raise errors.WorkloadError("attention with earlier keys is not supported")
    shapes = [[int(extent) for extent in tensor.ty.shape] for tensor in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes):
        raise errors.WorkloadError("attention needs tensors of four axes")
    (b, h, _, d), (_, heads, t, _), _ = shapes
    if shapes[1] != [b, heads, t, d] or shapes[2][:3] != [b, heads, t] or h % heads:
        raise errors.WorkloadError("shapes of queries, keys and values do not fit")
    if mask is not None and len(mask.ty.shape) > 4:
        raise errors.WorkloadError("the mask of an attention has more than four axes")
    scale, is_causal = attributes.get("scale"), bool(attributes.get("is_causal"))
    return attention.attention(bb.emit, (query, key, value), mask, scale, is_causal)


#: Operators -> the importer, inputs and attributes to an expression, or None for TVM's conversion.
_OWN: Mapping[str, Callable[[Any, Any, Mapping[str, Any]], Any]] = {
    "Expand": _expand,
    "OneHot": _one_hot,
    "Softplus": _softplus,
}
