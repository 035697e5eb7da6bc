"""Norms of float64 as their sums and products: TVM's programs of norms are of 32 bits at most."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from felix.frontend.rewriting import Rewriter, operator_name

#: Operators whose operands are a tensor, factors and, but for the last one, terms.
OPERATORS = frozenset({"nn.layer_norm", "nn.group_norm", "nn.rms_norm"})
_DTYPE = "float64"


def expanded(rewriter: Rewriter, call: Any) -> Any:
    """What stands for a norm of float64, or None where it stays one.

    Args:
        rewriter: of the function that has the call.
        call: of one of `OPERATORS`, with new operands.
    """
    x, *affine = call.args
    if str(x.ty.dtype) != _DTYPE:
        return None
    shape, rank = [int(extent) for extent in x.ty.shape], len(x.ty.shape)
    if operator_name(call) == "nn.group_norm":
        return _group_norm(rewriter, call, shape)
    axes = sorted(int(axis) % rank for axis in call.attrs.axes)
    if axes != list(range(rank - len(axes), rank)):
        return None
    is_centred = operator_name(call) == "nn.layer_norm"
    y = _normalised(rewriter, x, axes, float(call.attrs.epsilon), is_centred)
    return _scaled(rewriter, call, y, affine)


def _group_norm(rewriter: Rewriter, call: Any, shape: list[int]) -> Any:
    """Of [n, c, ...]: over the elements of c / groups channels at once."""
    x, *affine = call.args
    behind = list(range(2, len(shape)))
    if int(call.attrs.channel_axis) != 1 or [int(axis) for axis in call.attrs.axes] != behind:
        return None
    groups = int(call.attrs.num_groups)
    grouped = [shape[0], groups, math.prod(shape[1:]) // groups]
    y = rewriter.emit(relax.op.reshape(x, grouped))
    y = _normalised(rewriter, y, [2], float(call.attrs.epsilon), is_centred=True)
    y = rewriter.emit(relax.op.reshape(y, shape))
    per_channel = [shape[1], *[1] * len(behind)]
    affine = [rewriter.emit(relax.op.reshape(each, per_channel)) for each in affine]
    return _scaled(rewriter, call, y, affine)


def _normalised(
    rewriter: Rewriter, x: Any, axes: list[int], epsilon: float, is_centred: bool
) -> Any:
    """(x - mean) / sqrt(mean square + epsilon), the mean taken for 0 where it is not asked for."""
    if is_centred:
        mean = rewriter.emit(relax.op.mean(x, axes, keepdims=True))
        x = rewriter.emit(relax.op.subtract(x, mean))
    square = rewriter.emit(relax.op.multiply(x, x))
    square = rewriter.emit(relax.op.mean(square, axes, keepdims=True))
    least = relax.const(np.array(epsilon, _DTYPE), _DTYPE)
    root = rewriter.emit(relax.op.sqrt(rewriter.emit(relax.op.add(square, least))))
    return rewriter.emit(relax.op.divide(x, root))


def _scaled(rewriter: Rewriter, call: Any, y: Any, affine: list[Any]) -> Any:
    """A normalised tensor times its factors, plus its terms."""
    if getattr(call.attrs, "scale", True):
        y = rewriter.emit(relax.op.multiply(y, affine[0]))
    if len(affine) > 1 and call.attrs.center:
        y = rewriter.emit(relax.op.add(y, affine[1]))
    return y
