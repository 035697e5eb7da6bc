"""ONNX's loss of scores [n, c, d...] of classes by labels [n, d...]; 16 bits sum in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from felix import errors
from felix.frontend.onnx.node import Node, dtype_of, shape_of
from felix.tir.rounding import accumulator


def negative_log_likelihood(node: Node) -> Any:
    """NegativeLogLikelihoodLoss: less the scores of the labels, by weights of the classes.

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
    is_negative = node.emit(relax.op.less(labels, relax.const(0, "int64")))
    behind = node.emit(relax.op.add(labels, relax.const(shape_of(scores)[1], "int64")))
    labels = node.emit(relax.op.where(is_negative, behind, labels))
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
    "NegativeLogLikelihoodLoss": negative_log_likelihood
}
