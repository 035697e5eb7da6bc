"""Norms whose programs of TVM lose digits, or are of 32 bits at most.

The variance of a group is the mean square of what is left of the mean: the difference of the mean
square and the squared mean, as TVM writes it, has no right digit for values far from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.tirx import op

from felix.frontend import torch_forms
from felix.frontend.rewriting import Rewriter, operator_name


def legalizations() -> Mapping[str, torch_forms.Lowering]:
    """Ways to lower Relax operators that take the variance in two passes."""
    return {f"relax.nn.{name}": _lower for name in ("group_norm", "instance_norm")}


def _lower(builder: relax.BlockBuilder, call: Any) -> Any:
    x, gamma, beta = call.args
    behind = list(range(2, len(x.ty.shape)))
    axes = {int(axis) % len(x.ty.shape) for axis in call.attrs.axes}
    axes -= {0} if int(x.ty.shape[0]) == 1 else set()
    is_affine = bool(call.attrs.center) and bool(call.attrs.scale)
    if int(call.attrs.channel_axis) != 1 or sorted(axes) != behind or not is_affine:
        return call.op.get_attr("FLegalize")(builder, call)
    groups = int(getattr(call.attrs, "num_groups", x.ty.shape[1]))
    epsilon = float(call.attrs.epsilon)
    return builder.call_te(
        lambda *tensors: _normalised_groups(tensors, groups, epsilon),
        x,
        gamma,
        beta,
        primfunc_name_hint=operator_name(call).removeprefix("nn."),
    )


def _normalised_groups(tensors: Sequence[te.Tensor], groups: int, epsilon: float) -> te.Tensor:
    """Of [n, c, ...] over the c / groups channels of a group, and what is behind, at once."""
    x, gamma, beta = tensors
    n, c, *behind = (int(extent) for extent in x.shape)
    size, dtype = c // groups, str(x.dtype)
    grouped = te.compute(
        [n, groups, size, *behind], lambda i, g, j, *k: x(i, g * size + j, *k), name="T_grouped"
    )
    count = tirx.const(float(size * math.prod(behind)), dtype)

    def mean(value: Callable[..., Any], name: str) -> te.Tensor:
        axes = [
            te.reduce_axis((0, extent), name=f"k{m}") for m, extent in enumerate((size, *behind))
        ]
        total = te.compute(
            [n, groups], lambda i, g: te.sum(value(i, g, *axes), axis=axes), name=f"{name}_sum"
        )
        return te.compute([n, groups], lambda i, g: total(i, g) / count, name=name)

    means = mean(grouped, "T_mean")

    def square(i: Any, g: Any, *k: Any) -> Any:
        rest = grouped(i, g, *k) - means(i, g)
        return rest * rest

    variances = mean(square, "T_variance")
    least = tirx.const(epsilon, dtype)

    def element(i: Any, j: Any, *k: Any) -> Any:
        g = j // size if size > 1 else j
        rest = (x(i, j, *k) - means(i, g)) * op.rsqrt(variances(i, g) + least)
        return rest * gamma(j) + beta(j)

    return te.compute(x.shape, element, name="T_normalised")


# Norms of float64 as their sums and products.

#: Operators whose operands are a tensor, factors and, but for the last one, terms.
OPERATORS = frozenset({"nn.layer_norm", "nn.group_norm", "nn.rms_norm"})
_DTYPE = "float64"


def expanded_norm(rewriter: Rewriter, call: Any) -> Any:
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
