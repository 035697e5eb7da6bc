"""ONNX's quantised numbers: x = (q - zero) * scale, with a scale for all, an axis or blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend.layers import dtype_of, shape_of
from felix.frontend.onnx.arithmetic import element_type, supported
from felix.frontend.onnx.node import Node

_WHOLE = ("int8", "uint8", "int16", "uint16", "int32")


def quantize(node: Node) -> Any:
    """QuantizeLinear: round(x / scale) + zero, to the nearest that the type has."""
    x, scale, zero = (node[i] for i in range(3))
    number, precision = node.get("output_dtype", 0), node.get("precision", 0)
    node.get("saturate", 1)  # of float8
    dtype = dtype_of(zero) if zero is not None else element_type(number) if number else "uint8"
    wide = element_type(precision) if precision else "float32"
    if "float" not in wide:
        raise errors.WorkloadError("its attribute 'precision' is of no floats")
    ratio = relax.op.divide(node.cast(x, wide), _spread(node, node.cast(scale, wide), x))
    return _quantized(node, node.emit(ratio), zero, dtype, x)


def _quantized(node: Node, ratio: Any, zero: Any, dtype: str, x: Any) -> Any:
    """Ratios as numbers of a type, behind the zero point."""
    supported(dtype, _WHOLE)
    wide = dtype_of(ratio)
    y = node.emit(relax.op.round(ratio))
    if zero is not None:
        y = node.emit(relax.op.add(y, _spread(node, node.cast(zero, wide), x)))
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return node.cast(node.emit(relax.op.clip(y, float(least), float(most))), dtype)


def quantize_by_range(node: Node) -> Any:
    """DynamicQuantizeLinear: uint8 from the least to the largest element and 0; and of 0 alone
    with the scale 1, as ONNX Runtime has it."""
    x = node[0]
    zero, most = relax.const(0.0, "float32"), relax.const(255.0, "float32")
    largest = node.emit(relax.op.maximum(node.emit(relax.op.max(x)), zero))
    least = node.emit(relax.op.minimum(node.emit(relax.op.min(x)), zero))
    extent = node.emit(relax.op.subtract(largest, least))
    scale = node.emit(relax.op.divide(extent, most))
    is_zero = node.emit(relax.op.equal(extent, zero))
    scale = node.emit(relax.op.where(is_zero, relax.const(1.0, "float32"), scale))
    point = node.emit(relax.op.divide(node.emit(relax.op.subtract(zero, least)), scale))
    point = _quantized(node, point, None, "uint8", x)
    ratio = node.emit(relax.op.divide(x, scale))
    return relax.Tuple([_quantized(node, ratio, point, "uint8", x), scale, point])


def dequantize(node: Node) -> Any:
    """DequantizeLinear: (q - zero) * scale, in the type of the scale."""
    x, scale, zero = (node[i] for i in range(3))
    number = node.get("output_dtype", 0)
    dtype = element_type(number) if number else dtype_of(scale)
    supported(dtype_of(x), _WHOLE)
    y = node.cast(x, "int32")
    if zero is not None:
        y = node.emit(relax.op.subtract(y, _spread(node, node.cast(zero, "int32"), x)))
    factor = _spread(node, node.cast(scale, "float32"), x)
    return node.cast(node.emit(relax.op.multiply(node.cast(y, "float32"), factor)), dtype)


def _spread(node: Node, tensor: Any, x: Any) -> Any:
    """A scale or zero point as a tensor that broadcasts against x."""
    shape, given = shape_of(x), shape_of(tensor)
    if math.prod(given) == 1:
        return node.emit(relax.op.reshape(tensor, []))
    axis, block = int(node.get("axis", 1)), int(node.get("block_size", 0))
    if not -len(shape) <= axis < len(shape):
        raise errors.WorkloadError(f"its attribute 'axis' is {axis}, and it has {len(shape)} axes")
    axis %= len(shape)
    if block:
        wide = node.emit(relax.op.repeat(tensor, block, axis))
        part = relax.op.strided_slice(wide, [axis], [0], [shape[axis]], assume_inbound=True)
        return node.emit(part)
    if given != [shape[axis]]:
        raise errors.WorkloadError("its scale has another shape than its axis")
    per_axis = [-1 if i == axis else 1 for i in range(len(shape))]
    return node.emit(relax.op.reshape(tensor, per_axis))


def multiply(node: Node) -> Any:
    """QLinearMatMul: the product in int32, quantised anew."""
    factors = []
    for first, is_left in ((0, True), (3, False)):
        x = node.cast(node[first], "int32")
        zero = _along_rows(node, node.cast(node[first + 2], "int32"), x, is_left)
        factors.append(node.emit(relax.op.subtract(x, zero)))
    product = node.emit(relax.op.matmul(*factors, out_dtype="int32"))
    scales = [
        _along_rows(node, node.cast(node[first], "float32"), product, is_left)
        for first, is_left in ((1, True), (4, False))
    ]
    scale = node.emit(relax.op.multiply(*scales))
    scale = node.emit(relax.op.divide(scale, _one(node, node.cast(node[6], "float32"))))
    ratio = node.emit(relax.op.multiply(node.cast(product, "float32"), scale))
    return _quantized(node, ratio, node[7], dtype_of(node[7]), product)


def _one(node: Node, tensor: Any) -> Any:
    if math.prod(shape_of(tensor)) != 1:
        raise errors.WorkloadError("a scale for each row of the result is not supported")
    return node.emit(relax.op.reshape(tensor, []))


def _along_rows(node: Node, tensor: Any, matrix: Any, is_left: bool) -> Any:
    """One number, or one for each row of the left factor or column of the right one."""
    count, rank = math.prod(shape_of(tensor)), len(shape_of(tensor))
    if rank not in (0, 1, len(shape_of(matrix))):
        raise errors.WorkloadError("its scales have another number of axes than its factors")
    if count == 1:
        return node.emit(relax.op.reshape(tensor, []))
    if count != shape_of(matrix)[-2 if is_left else -1]:
        raise errors.WorkloadError("its scales have another number than rows or columns")
    return node.emit(relax.op.reshape(tensor, [count, 1] if is_left else [count]))


#: Operators of this module.
CONVERSIONS: Mapping[str, Callable[[Node], Any]] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": quantize_by_range,
    "QLinearMatMul": multiply,
}
