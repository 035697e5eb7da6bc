"""ONNX's reductions, running sums and products, losses, and the largest elements.

Floats of 16 bits are summed in float32, integers with means and roots in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend import layers
from felix.frontend.layers import dtype_of, shape_of
from felix.frontend.onnx.node import Node
from felix.tir.rounding import accumulator

#: A node, a tensor, axes, and whether these stay with the extent 1 -> the reduced tensor.
_Reduction = Callable[[Node, Any, Sequence[int], bool], Any]


def reduce(node: Node) -> Any:
    """A tensor reduced along the axes of an operand or, in older operators, of an attribute."""
    x, axes, keep = node[0], node.integers(1, "axes"), bool(node.get("keepdims", 1))
    is_noop = bool(node.get("noop_with_empty_axes", 0))
    rank, dtype = len(shape_of(x)), dtype_of(x)
    chosen = [axis % rank for axis in axes] if axes else [] if is_noop else list(range(rank))
    name = node.operator.removeprefix("Reduce")
    if name in ("Max", "Min") and any(shape_of(x)[axis] == 0 for axis in chosen):
        return _extreme_of_none(x, chosen, keep, is_least=name == "Max")
    reduction, is_rounded = _REDUCTIONS[name]
    if dtype == "bool":
        x = node.cast(x, "int8")
    elif is_rounded and "float" not in dtype:
        x = node.cast(x, "float64")
    else:
        x = node.cast(x, accumulator(dtype))
    return node.cast(reduction(node, x, chosen, keep), dtype)


def _extreme_of_none(x: Any, axes: Sequence[int], keep: bool, is_least: bool) -> Any:
    """The largest or smallest of no elements: the least or the largest number of the type."""
    shape, dtype = shape_of(x), dtype_of(x)
    kept = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    left = [extent for axis, extent in enumerate(kept) if keep or axis not in axes]
    if dtype == "bool":
        value: Any = not is_least
    elif "float" in dtype:
        value = -math.inf if is_least else math.inf
    else:
        value = getattr(np.iinfo(dtype), "min" if is_least else "max")
    return relax.const(np.full(left, value, dtype), dtype)


def _plain(operator: Callable[..., Any]) -> _Reduction:
    def reduction(node: Node, x: Any, axes: Sequence[int], keep: bool) -> Any:
        return node.emit(operator(x, list(axes), keep)) if axes else x

    return reduction


_sum = _plain(relax.op.sum)
_max = _plain(relax.op.max)


def _before(change: Callable[[Any], Any], reduction: _Reduction) -> _Reduction:
    return lambda node, x, axes, keep: reduction(node, node.emit(change(x)), axes, keep)


def _after(change: Callable[[Any], Any], reduction: _Reduction) -> _Reduction:
    return lambda node, x, axes, keep: node.emit(change(reduction(node, x, axes, keep)))


def _mean(node: Node, x: Any, axes: Sequence[int], keep: bool) -> Any:
    count = math.prod(shape_of(x)[axis] for axis in axes)
    total = _sum(node, x, axes, keep)
    return node.emit(relax.op.divide(total, relax.const(count, dtype_of(x))))


def _log_sum_exp(node: Node, x: Any, axes: Sequence[int], keep: bool) -> Any:
    """m + log(sum(exp(x - m))), m the largest element, or 0 where that is not finite."""
    dtype = dtype_of(x)
    largest = _max(node, x, axes, True)
    is_finite = node.emit(relax.op.isfinite(largest))
    shift = node.emit(relax.op.where(is_finite, largest, relax.const(0, dtype)))
    powers = node.emit(relax.op.exp(node.emit(relax.op.subtract(x, shift))))
    total = node.emit(relax.op.log(_sum(node, powers, axes, keep)))
    if axes and not keep:
        shift = node.emit(relax.op.squeeze(shift, list(axes)))
    return node.emit(relax.op.add(total, shift))


_sum_square = _before(relax.op.square, _sum)
#: By the end of the operator's name, and whether integers are computed in float64.
_REDUCTIONS: Mapping[str, tuple[_Reduction, bool]] = {
    "Sum": (_sum, False),
    "Max": (_max, False),
    "Min": (_plain(relax.op.min), False),
    "Prod": (_plain(relax.op.prod), False),
    "Mean": (_mean, True),
    "L1": (_before(relax.op.abs, _sum), False),
    "L2": (_after(relax.op.sqrt, _sum_square), True),
    "SumSquare": (_sum_square, False),
    "LogSum": (_after(relax.op.log, _sum), True),
    "LogSumExp": (_log_sum_exp, True),
}


def scan(node: Node) -> Any:
    """CumSum and CumProd."""
    x, axis = node[0], node.integers(1)
    dtype = dtype_of(x)
    is_exclusive, is_reverse = bool(node.get("exclusive", 0)), bool(node.get("reverse", 0))
    number = (axis or [0])[0] % len(shape_of(x))
    x = node.cast(x, accumulator(dtype))
    operator = relax.op.cumsum if node.operator == "CumSum" else relax.op.cumprod
    x = node.emit(relax.op.flip(x, number)) if is_reverse else x
    x = node.emit(operator(x, number, dtype_of(x), is_exclusive))
    x = node.emit(relax.op.flip(x, number)) if is_reverse else x
    return node.cast(x, dtype)


def top_k(node: Node) -> Any:
    """The k largest or smallest elements along an axis, and their places."""
    x = node[0]
    k = int(node.get("k")) if "k" in node.attributes else (node.integers(1) or [0])[0]
    if not k:
        raise errors.WorkloadError("it takes no elements, which is not supported")
    axis, is_largest = int(node.get("axis", -1)), bool(node.get("largest", 1))
    node.get("sorted", 1)  # what is sorted is right, too
    dtype = dtype_of(x)
    offset = relax.const(np.uint64(2**63))
    if dtype == "uint64":  # TVM sorts none; this keeps their order
        x = node.cast(node.emit(relax.op.add(x, offset)), "int64")
    elif "float" not in dtype:
        x = node.cast(x, "int64")
    else:
        x = node.cast(x, accumulator(dtype))
    pair = node.emit(relax.op.topk(x, k, axis, "both", is_largest, "int64"))
    values, places = (node.emit(relax.TupleGetItem(pair, i)) for i in range(2))
    values = node.cast(values, dtype)
    if dtype == "uint64":
        values = node.emit(relax.op.subtract(values, offset))
    return relax.Tuple([values, places])


def negative_log_likelihood(node: Node) -> Any:
    """NegativeLogLikelihoodLoss: less the scores [n, c, d...] of the labels [n, d...], by weights
    of the classes.

    A mean is over the weights; labels that are ignored have the weight 0.
    """
    scores, labels, weights = (node[i] for i in range(3))
    reduction, ignored = node.get("reduction", "mean"), node.get("ignore_index")
    dtype = dtype_of(scores)
    wide = accumulator(dtype)
    labels = node.cast(labels, "int64")
    is_ignored = None
    if ignored is not None:
        is_ignored = node.emit(relax.op.equal(labels, relax.const(int(ignored), "int64")))
        labels = node.emit(relax.op.where(is_ignored, relax.const(0, "int64"), labels))
    # Labels below 0 count from the end, as those of a gather do.
    labels = layers.from_the_beginning(node.emit, labels, shape_of(scores)[1])
    places = node.emit(relax.op.expand_dims(labels, 1))
    chosen = node.emit(relax.op.gather_elements(node.cast(scores, wide), places, 1))
    loss = node.emit(relax.op.negative(node.emit(relax.op.squeeze(chosen, [1]))))
    if weights is None:
        factors = node.emit(relax.op.ones_like(loss))
    else:
        factors = node.emit(relax.op.take(node.cast(weights, wide), labels, 0))
        loss = node.emit(relax.op.multiply(loss, factors))
    if is_ignored is not None:
        zero = relax.const(0, wide)
        loss, factors = (
            node.emit(relax.op.where(is_ignored, zero, each)) for each in (loss, factors)
        )
    if reduction not in ("none", "sum", "mean"):
        raise errors.WorkloadError("its attribute 'reduction' is unknown")
    if reduction != "none":
        loss = node.emit(relax.op.sum(loss))
    if reduction == "mean":
        loss = node.emit(relax.op.divide(loss, node.emit(relax.op.sum(factors))))
    return node.cast(loss, dtype)


#: Operators of this module.
CONVERSIONS: Mapping[str, Callable[[Node], Any]] = {
    **{f"Reduce{name}": reduce for name in _REDUCTIONS},
    "CumSum": scan,
    "CumProd": scan,
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "TopK": top_k,
}
