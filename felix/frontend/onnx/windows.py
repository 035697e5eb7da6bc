"""ONNX's matrix products, convolutions and pools.

Products of 16-bit floats are summed in float32 and rounded once, behind the bias.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from felix import errors, names
from felix.frontend import layers
from felix.frontend.layers import dtype_of, shape_of
from felix.frontend.onnx.node import Node
from felix.tir.rounding import accumulator


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    """How a window moves; `pads` are those before all axes and then those behind."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]


def _window(node: Node, extents: Sequence[int], kernel: Sequence[int]) -> _Window:
    """A node's window over axes of these extents.

    Raises:
        WorkloadError: attributes of other axes, or an unknown way to pad.
    """
    n, auto = len(extents), node.get("auto_pad", "NOTSET")
    strides, dilations = (list(node.get(name, [1] * n)) for name in ("strides", "dilations"))
    pads = list(node.get("pads", [0] * (2 * n)))
    if n not in layers.SPATIAL:
        raise errors.WorkloadError(f"windows of {n} axes are not supported")
    if [len(strides), len(dilations), len(kernel), len(pads)] != [n, n, n, 2 * n]:
        raise errors.WorkloadError("its attributes are of another number of axes")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(0, (-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent)
            for extent, s, k, d in zip(extents, strides, kernel, dilations, strict=True)
        ]
        pads = _halves(totals, auto)
    elif auto == "VALID":
        pads = [0] * (2 * n)
    elif auto != "NOTSET":
        raise errors.WorkloadError(f"its attribute 'auto_pad' is {names.quoted(auto)}")
    return _Window(list(kernel), strides, dilations, pads)


def _halves(totals: Sequence[int], auto: str) -> list[int]:
    """Pads before and behind; an odd one more behind, or before."""
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return [*less, *more] if auto == "SAME_UPPER" else [*more, *less]


def _kernel(node: Node, weight: Any) -> list[int]:
    extents = shape_of(weight)[2:]
    if list(node.get("kernel_shape") or extents) != extents:
        raise errors.WorkloadError("its attribute 'kernel_shape' is not that of the weights")
    return extents


def convolve(node: Node) -> Any:
    """Conv."""
    x, weight, bias = (node[i] for i in range(3))
    return _convolved(
        node, (x, weight, bias), _window(node, shape_of(x)[2:], _kernel(node, weight))
    )


def _convolved(
    node: Node,
    tensors: Sequence[Any],
    window: _Window,
    is_transposed: bool = False,
    **more: Sequence[int],
) -> Any:
    return layers.convolution(
        node.emit,
        tensors,
        is_transposed,
        int(node.get("group", 1)),
        strides=window.strides,
        padding=window.pads,
        dilation=window.dilations,
        **more,
    )


def convolve_transposed(node: Node) -> Any:
    """ConvTranspose."""
    x, weight, bias = (node[i] for i in range(3))
    kernel, extents = _kernel(node, weight), shape_of(x)[2:]
    n, auto = len(extents), node.get("auto_pad", "NOTSET")
    outputs, behind = node.get("output_shape"), list(node.get("output_padding", [0] * n))
    window = _window(node, extents, kernel)
    if outputs is None and auto.startswith("SAME"):
        outputs = [e * s for e, s in zip(extents, window.strides, strict=True)]
    if outputs is not None:
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, window.dilations, strict=True)]
        totals = [
            s * (e - 1) + more + r - out
            for s, e, more, r, out in zip(
                window.strides, extents, behind, reach, outputs[-n:], strict=True
            )
        ]
        behind = [more - min(0, t) for more, t in zip(behind, totals, strict=True)]
        pads = _halves([max(0, t) for t in totals], auto)
        window = dataclasses.replace(window, pads=pads)
    return _convolved(node, (x, weight, bias), window, True, output_padding=behind)


def convolve_integers(node: Node) -> Any:
    """ConvInteger: of int8 and uint8 without their zero points, in int32."""
    x, weight = (_from_zero(node, i, [-1, *[1] * (len(shape_of(node[i])) - 1)]) for i in range(2))
    window = _window(node, shape_of(x)[2:], _kernel(node, weight))
    return _convolved(node, (x, weight, None), window)


def multiply(node: Node) -> Any:
    """MatMul."""
    return layers.product(node.emit, node[0], node[1])


def multiply_add(node: Node) -> Any:
    """Gemm: alpha A B + beta C, each factor transposed where an attribute says so."""
    left, right = (
        node.emit(relax.op.permute_dims(node[i])) if node.get(name, 0) else node[i]
        for i, name in enumerate(("transA", "transB"))
    )
    alpha, beta = (float(node.get(name, 1.0)) for name in ("alpha", "beta"))
    return layers.product(node.emit, left, right, node[2], alpha, beta)


def multiply_integers(node: Node) -> Any:
    """MatMulInteger: of int8 and uint8 less their zero points, in int32."""
    factors = [_from_zero(node, i, several) for i, several in enumerate(([-1, 1], [-1]))]
    return node.emit(relax.op.matmul(*factors, "int32"))


def _from_zero(node: Node, index: int, several: Sequence[int]) -> Any:
    """One of two operands less its zero point, or several of this shape, in int32."""
    x = node.cast(node[index], "int32")
    if node[index + 2] is None:
        return x
    point = node.cast(node[index + 2], "int32")
    given = shape_of(point)
    shape = [] if math.prod(given) == 1 else several if len(given) == 1 else given
    return node.emit(relax.op.subtract(x, node.emit(relax.op.reshape(point, shape))))


def pool(node: Node) -> Any:
    """MaxPool, AveragePool and LpPool."""
    x, name = node[0], node.operator
    dtype = dtype_of(x)
    window = _window(node, shape_of(x)[2:], node.get("kernel_shape"))
    p = float(node.get("p", 2)) if name == "LpPool" else 0.0
    includes = True if p else bool(node.get("count_include_pad", 0))
    is_ceil = bool(node.get("ceil_mode", 0))
    kind = "max" if name == "MaxPool" else "avg"
    if kind == "avg":
        x = node.cast(x, accumulator(dtype))
    x = _to_power(node, x, p)
    operator = getattr(relax.op.nn, f"{kind}_pool{len(window.kernel)}d")
    x = node.emit(
        operator(
            x, window.kernel, window.strides, window.pads, window.dilations, is_ceil, includes
        )
    )
    if p:
        count = relax.const(math.prod(window.kernel), dtype_of(x))
        x = _to_power(node, node.emit(relax.op.multiply(x, count)), 1 / p)
    return node.cast(x, dtype)


def global_pool(node: Node) -> Any:
    """The pools over all places of a channel."""
    x, name = node[0], node.operator
    dtype, axes = dtype_of(x), list(range(2, len(shape_of(x))))
    if name == "GlobalMaxPool":
        return node.emit(relax.op.max(x, axes, True))
    x = node.cast(x, accumulator(dtype))
    if name == "GlobalAveragePool":
        return node.cast(node.emit(relax.op.mean(x, axes, True)), dtype)
    p = float(node.get("p", 2))
    total = node.emit(relax.op.sum(_to_power(node, x, p), axes, True))
    return node.cast(_to_power(node, total, 1 / p), dtype)


def _to_power(node: Node, x: Any, p: float) -> Any:
    """The absolute values to a power; as they are for 0 and 1."""
    if p in (0.0, 1.0):
        return node.emit(relax.op.abs(x)) if p else x
    if p == 2.0:
        return node.emit(relax.op.square(x))
    if p == 0.5:
        return node.emit(relax.op.sqrt(x))
    exponent = relax.const(np.asarray(p, dtype_of(x)), dtype_of(x))
    return node.emit(relax.op.power(node.emit(relax.op.abs(x)), exponent))


#: Operators of this module.
CONVERSIONS: Mapping[str, Callable[[Node], Any]] = {
    "MatMul": multiply,
    "Gemm": multiply_add,
    "MatMulInteger": multiply_integers,
    "Conv": convolve,
    "ConvTranspose": convolve_transposed,
    "ConvInteger": convolve_integers,
    **{name: pool for name in ("MaxPool", "AveragePool", "LpPool")},
    **{f"Global{name}": global_pool for name in ("MaxPool", "AveragePool", "LpPool")},
}
