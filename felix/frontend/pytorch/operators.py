"""Conversions of ATen operators that replace TVM's own.

TVM's importer gives products and convolutions the type float32 whatever their operands are, lacks
transposed convolution in three dimensions, layer norm of bfloat16 and RMS norm, and drops
arguments of some operators. Here operands of 16 bits are summed in float32 and rounded once, as
PyTorch does it: what follows in float32 is fused behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from felix.frontend import layers, numerics
from felix.frontend.pytorch import conversion, division
from felix.frontend.pytorch.conversion import arguments, cast
from felix.tir.rounding import accumulator


def _linear(node: torch.fx.Node, importer: Any) -> Any:
    x, weight, bias = arguments(node, importer, 3)
    emit = importer.block_builder.emit
    if len(weight.ty.shape) > 1:
        weight = emit(relax.op.permute_dims(weight))
    return layers.product(emit, x, weight, bias)


def _matmul(node: torch.fx.Node, importer: Any) -> Any:
    return layers.product(importer.block_builder.emit, *arguments(node, importer, 2))


def _addmm(node: torch.fx.Node, importer: Any) -> Any:
    bias, left, right = arguments(node, importer, 3)
    factors: Any = [node.kwargs.get(name, 1) for name in ("alpha", "beta")]
    return layers.product(importer.block_builder.emit, left, right, bias, *factors)


def _convolution(node: torch.fx.Node, importer: Any) -> Any:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = arguments(
        node, importer, 9
    )
    emit, n_spatial = importer.block_builder.emit, len(weight.ty.shape) - 2
    is_single = len(x.ty.shape) == n_spatial + 1
    if is_single:
        x = emit(relax.op.expand_dims(x, 0))
    window = {"strides": stride, "padding": padding, "dilation": dilation}
    if transposed:
        window["output_padding"] = output_padding
    window = {name: _extents(values, n_spatial) for name, values in window.items()}
    result = layers.convolution(emit, (x, weight, bias), transposed, groups, **window)
    return emit(relax.op.squeeze(result, [0])) if is_single else result


def _extents(values: Sequence[int], n_spatial: int) -> list[int]:
    """One value for each spatial dimension; PyTorch lets one stand for all."""
    return list(values) * n_spatial if len(values) == 1 else list(values)


def _layer_norm(node: torch.fx.Node, importer: Any) -> Any:
    x, shape, gamma, beta, epsilon = arguments(node, importer, 5)
    epsilon = 1e-5 if epsilon is None else epsilon
    options = {"axes": list(range(-len(shape), 0)), "epsilon": epsilon}
    emit, operator = importer.block_builder.emit, relax.op.nn.layer_norm
    return layers.norm(emit, operator, x, (gamma, beta), shape, **options)


def _batch_norm(node: torch.fx.Node, importer: Any) -> Any:
    """With running statistics; the statistics and factors may be of a wider type than x."""
    x, gamma, beta, mean, variance, _, epsilon = arguments(node, importer, 7)
    emit, shape, dtype = importer.block_builder.emit, [int(x.ty.shape[1])], str(x.ty.dtype)
    types = {str(each.ty.dtype) for each in (gamma, beta, mean, variance) if each is not None}
    wide = dtype if types <= {dtype} else accumulator(dtype)
    result = emit(
        relax.op.nn.batch_norm(
            cast(importer, x, wide),
            layers.scale(emit, gamma, shape, wide, np.ones),
            layers.scale(emit, beta, shape, wide, np.zeros),
            cast(importer, mean, wide),
            cast(importer, variance, wide),
            axis=1,
            epsilon=epsilon,
            training=False,
        )
    )
    normalised, *empty = [emit(relax.TupleGetItem(result, number)) for number in range(3)]
    return relax.Tuple([cast(importer, normalised, dtype), *empty])


def _rms_norm(node: torch.fx.Node, importer: Any) -> Any:
    x, shape, weight, epsilon = arguments(node, importer, 4)
    if epsilon is None:
        epsilon = torch.finfo(getattr(torch, accumulator(str(x.ty.dtype)))).eps
    return layers.rms_norm(importer.block_builder.emit, x, weight, shape, epsilon)


def _group_norm(node: torch.fx.Node, importer: Any) -> Any:
    """The normalised tensor; means and factors of the groups are not given."""
    x, gamma, beta, _, channels, _, groups, epsilon = arguments(node, importer, 8)
    axes = list(range(2, len(x.ty.shape)))
    options = {"num_groups": groups, "channel_axis": 1, "axes": axes, "epsilon": epsilon}
    emit, operator = importer.block_builder.emit, relax.op.nn.group_norm
    return relax.Tuple([layers.norm(emit, operator, x, (gamma, beta), [channels], **options)])


def _largest(operator: Any) -> conversion.Converter:
    """The largest or smallest element along some dimensions, or along all."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        x, dims, keeps = arguments(node, importer, 3)
        keeps = bool(node.kwargs.get("keepdim", keeps))
        return importer.block_builder.emit(operator(x, list(dims or []) or None, keeps))

    return converted


def _vector_norm(node: torch.fx.Node, importer: Any) -> Any:
    """Norms along dimensions; those of single elements, which have no power that may overflow."""
    x, order, _, _ = arguments(node, importer, 4)
    shape = list(node.meta["val"].shape)
    if order == 0 or math.prod(shape) != math.prod(int(extent) for extent in x.ty.shape):
        return conversion.TYPED["linalg_vector_norm.default"](node, importer)
    x = cast(importer, x, conversion.result_dtype(node))
    emit = importer.block_builder.emit
    return emit(relax.op.reshape(emit(relax.op.abs(x)), shape))


def _split(name: str) -> conversion.Converter:
    """The parts; TVM gives no tuple of a single one."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        if len(node.meta["val"]) == 1:
            return relax.Tuple(arguments(node, importer, 3)[:1])
        return conversion.by_tvm(name, node, importer)

    return converted


def _clamp(node: torch.fx.Node, importer: Any) -> Any:
    """Integers between bounds of which one may be missing: TVM would take infinity for it; and
    between crossed bounds, where it takes the higher one and PyTorch the second one."""
    dtype = conversion.result_dtype(node)
    x, low, high = arguments(node, importer, 3)
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    is_crossed = low is not None and high is not None and low > high
    if "float" in dtype and not is_crossed:
        return conversion.TYPED["clamp.default"](node, importer)
    value, number = cast(importer, x, dtype), float if "float" in dtype else int
    for bound, limited in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if bound is not None:
            constant = relax.const(number(bound), dtype)
            value = importer.block_builder.emit(limited(value, constant))
    return value


def _near_zero(function: str) -> conversion.Converter:
    """A function of one tensor whose small results TVM's formula would lose."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        (x,) = arguments(node, importer, 1)
        x = cast(importer, x, conversion.result_dtype(node))
        return numerics.emit(importer.block_builder, function, x)

    return converted


#: Alpha and scale of SELU.
_SELU = (1.6732632423543772, 1.0507009873554805)


def _elu(node: torch.fx.Node, importer: Any) -> Any:
    """ELU and SELU."""
    x, alpha, scale, input_scale = arguments(node, importer, 4)
    if "selu" in str(node.target):
        alpha, scale = _SELU
    factors = [1.0 if each is None else float(each) for each in (alpha, scale, input_scale)]
    return layers.elu(importer.block_builder, x, *factors)


def _hardtanh(node: torch.fx.Node, importer: Any) -> Any:
    x, low, high = arguments(node, importer, 3)
    low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    # Between crossed bounds everything is the second one.
    return importer.block_builder.emit(relax.op.clip(x, min(low, high), high))


#: The conversions by the operators' names.
CONVERSIONS: Mapping[str, conversion.Converter] = {
    "linear.default": _linear,
    **{f"{name}.default": _matmul for name in ("matmul", "mm", "bmm")},
    **{f"{name}.default": _addmm for name in ("addmm", "baddbmm")},
    "convolution.default": _convolution,
    "layer_norm.default": _layer_norm,
    "rms_norm.default": _rms_norm,
    "hardtanh.default": _hardtanh,
    **{f"{name}.default": _elu for name in ("elu", "selu")},
    **{f"{name}.default": _near_zero(name) for name in ("expm1", "log1p")},
    "native_group_norm.default": _group_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
    "scaled_dot_product_attention.default": conversion.attention,
    **conversion.TYPED,
    **{name: _split(name) for name in ("split.Tensor", "split_with_sizes.default")},
    "clamp.default": _clamp,
    "linalg_vector_norm.default": _vector_norm,
    "amax.default": _largest(relax.op.max),
    "amin.default": _largest(relax.op.min),
    **division.CONVERSIONS,
    **conversion.INDEXING,
}
