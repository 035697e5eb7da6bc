"""Conversions of ATen operators that replace TVM's own.

TVM's importer gives products and convolutions the type float32 whatever their operands are, lacks
transposed convolution in three dimensions, layer norm of bfloat16 and RMS norm, and drops
arguments of some operators. Here operands of 16 bits are summed in float32 and rounded once, as
PyTorch does it: what follows in float32 is fused behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from felix.frontend import numerics
from felix.frontend.pytorch import conversion, division
from felix.frontend.pytorch.conversion import arguments, cast
from felix.tir.rounding import accumulator

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def convert_map() -> dict[str, conversion.Converter]:
    """The conversions by the operators' names, for one import."""
    defaults = conversion.Defaults()
    typed = conversion.typed_map(defaults)
    return {
        "linear.default": _linear,
        "matmul.default": _matmul,
        "mm.default": _matmul,
        "bmm.default": _matmul,
        "addmm.default": _addmm,
        "baddbmm.default": _addmm,
        "convolution.default": _convolution,
        "layer_norm.default": _layer_norm,
        "rms_norm.default": _rms_norm,
        "hardtanh.default": _hardtanh,
        "elu.default": _elu,
        "selu.default": _elu,
        **{f"{name}.default": _near_zero(name) for name in ("expm1", "log1p")},
        "native_group_norm.default": _group_norm,
        "_native_batch_norm_legit_no_training.default": _batch_norm,
        "scaled_dot_product_attention.default": conversion.convert,
        **typed,
        "split.Tensor": _split("split.Tensor", defaults),
        "split_with_sizes.default": _split("split_with_sizes.default", defaults),
        "clamp.default": _clamp(typed["clamp.default"]),
        "linalg_vector_norm.default": _vector_norm(typed["linalg_vector_norm.default"]),
        "amax.default": _largest(relax.op.max),
        "amin.default": _largest(relax.op.min),
        **division.convert_map(defaults),
        **conversion.indexing_map(defaults),
    }


def _product(importer: Any, left: Any, right: Any, bias: Any | None) -> Any:
    """left @ right + bias, summed in the accumulator's type and rounded once."""
    emit, dtype = importer.block_builder.emit, str(left.ty.dtype)
    wide = accumulator(dtype)
    result = emit(relax.op.matmul(left, right, out_dtype=wide))
    if bias is not None:
        result = emit(relax.op.add(result, cast(importer, bias, wide)))
    return cast(importer, result, dtype)


def _linear(node: torch.fx.Node, importer: Any) -> Any:
    x, weight, bias = arguments(node, importer, 3)
    if len(weight.ty.shape) > 1:
        weight = importer.block_builder.emit(relax.op.permute_dims(weight))
    return _product(importer, x, weight, bias)


def _matmul(node: torch.fx.Node, importer: Any) -> Any:
    left, right = arguments(node, importer, 2)
    return _product(importer, left, right, None)


def _addmm(node: torch.fx.Node, importer: Any) -> Any:
    bias, left, right = arguments(node, importer, 3)
    emit, dtype = importer.block_builder.emit, str(left.ty.dtype)
    wide = accumulator(dtype)
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    result = emit(relax.op.matmul(left, right, out_dtype=wide))
    if alpha != 1:
        result = emit(relax.op.multiply(result, relax.const(alpha, wide)))
    if beta != 0:
        bias = cast(importer, bias, wide)
        if beta != 1:
            bias = emit(relax.op.multiply(bias, relax.const(beta, wide)))
        result = emit(relax.op.add(result, bias))
    return cast(importer, result, dtype)


def _convolution(node: torch.fx.Node, importer: Any) -> Any:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = arguments(
        node, importer, 9
    )
    emit, dtype = importer.block_builder.emit, str(x.ty.dtype)
    n_spatial = len(weight.ty.shape) - 2
    is_single = len(x.ty.shape) == n_spatial + 1
    if is_single:
        x = emit(relax.op.expand_dims(x, 0))
    options = {
        "strides": _extents(stride, n_spatial),
        "padding": _extents(padding, n_spatial),
        "dilation": _extents(dilation, n_spatial),
        "groups": groups,
        "data_layout": f"NC{_SPATIAL[n_spatial]}",
        "kernel_layout": f"{'IO' if transposed else 'OI'}{_SPATIAL[n_spatial]}",
        "out_dtype": accumulator(dtype),
    }
    if transposed:
        options["output_padding"] = _extents(output_padding, n_spatial)
    operator = getattr(relax.op.nn, f"conv{n_spatial}d{'_transpose' if transposed else ''}")
    result = emit(operator(x, weight, **options))
    if bias is not None:
        shape = (1, -1, *[1] * n_spatial)
        wide = cast(importer, bias, accumulator(dtype))
        result = emit(relax.op.add(result, emit(relax.op.reshape(wide, shape))))
    result = cast(importer, result, dtype)
    return emit(relax.op.squeeze(result, [0])) if is_single else result


def _extents(values: Sequence[int], n_spatial: int) -> list[int]:
    """One value for each spatial dimension; PyTorch lets one stand for all."""
    return list(values) * n_spatial if len(values) == 1 else list(values)


def _layer_norm(node: torch.fx.Node, importer: Any) -> Any:
    x, shape, gamma, beta, epsilon = arguments(node, importer, 5)
    epsilon = 1e-5 if epsilon is None else epsilon
    options = {"axes": list(range(-len(shape), 0)), "epsilon": epsilon}
    return _normalised(importer, relax.op.nn.layer_norm, x, (gamma, beta), shape, options)


def _batch_norm(node: torch.fx.Node, importer: Any) -> Any:
    """With running statistics; the statistics and factors may be of a wider type than x."""
    x, gamma, beta, mean, variance, _, epsilon = arguments(node, importer, 7)
    n_channels, dtype = int(x.ty.shape[1]), str(x.ty.dtype)
    types = {str(each.ty.dtype) for each in (gamma, beta, mean, variance) if each is not None}
    wide = dtype if types <= {dtype} else accumulator(dtype)
    result = importer.block_builder.emit(
        relax.op.nn.batch_norm(
            cast(importer, x, wide),
            _scale(importer, gamma, [n_channels], wide, np.ones),
            _scale(importer, beta, [n_channels], wide, np.zeros),
            cast(importer, mean, wide),
            cast(importer, variance, wide),
            axis=1,
            epsilon=epsilon,
            training=False,
        )
    )
    normalised = importer.block_builder.emit(relax.TupleGetItem(result, 0))
    empty = [importer.block_builder.emit(relax.TupleGetItem(result, number)) for number in (1, 2)]
    return relax.Tuple([cast(importer, normalised, dtype), *empty])


def _rms_norm(node: torch.fx.Node, importer: Any) -> Any:
    x, shape, weight, epsilon = arguments(node, importer, 4)
    if epsilon is None:
        epsilon = torch.finfo(getattr(torch, accumulator(str(x.ty.dtype)))).eps
    options = {"axes": list(range(-len(shape), 0)), "epsilon": epsilon}
    if len(shape) < len(x.ty.shape):
        return _normalised(importer, relax.op.nn.rms_norm, x, (weight,), shape, options)
    # TVM has no program where nothing is left of the shape.
    x = importer.block_builder.emit(relax.op.expand_dims(x, 0))
    result = _normalised(importer, relax.op.nn.rms_norm, x, (weight,), shape, options)
    return importer.block_builder.emit(relax.op.squeeze(result, [0]))


def _scale(importer: Any, value: Any, shape: Sequence[int], dtype: str, fill: Any) -> Any:
    if value is None:
        return relax.const(fill([int(extent) for extent in shape], dtype), dtype)
    return cast(importer, value, dtype)


def _group_norm(node: torch.fx.Node, importer: Any) -> Any:
    """The normalised tensor; means and factors of the groups are not given."""
    x, gamma, beta, _, channels, _, groups, epsilon = arguments(node, importer, 8)
    axes = list(range(2, len(x.ty.shape)))
    options = {"num_groups": groups, "channel_axis": 1, "axes": axes, "epsilon": epsilon}
    normalised = _normalised(
        importer, relax.op.nn.group_norm, x, (gamma, beta), [channels], options
    )
    return relax.Tuple([normalised])


def _normalised(
    importer: Any,
    norm: Any,
    x: Any,
    scales: Sequence[Any],
    shape: Sequence[int],
    options: dict[str, Any],
) -> Any:
    """A norm of x in its accumulator's type; `scales` are a factor and, for some, a summand."""
    dtype = str(x.ty.dtype)
    wide = accumulator(dtype)
    wide_x = cast(importer, x, wide)
    filled = zip(scales, (np.ones, np.zeros), strict=False)
    wide_scales = [_scale(importer, scale, shape, wide, fill) for scale, fill in filled]
    result = importer.block_builder.emit(norm(wide_x, *wide_scales, **options))
    return cast(importer, result, dtype)


def _largest(operator: Any) -> conversion.Converter:
    """The largest or smallest element along some dimensions, or along all."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        x, dims, keeps = arguments(node, importer, 3)
        keeps = bool(node.kwargs.get("keepdim", keeps))
        return importer.block_builder.emit(operator(x, list(dims or []) or None, keeps))

    return converted


def _vector_norm(convert: conversion.Converter) -> conversion.Converter:
    """Norms along dimensions; those of single elements, which have no power that may overflow."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        x, order, _, _ = arguments(node, importer, 4)
        shape = list(node.meta["val"].shape)
        if order == 0 or math.prod(shape) != math.prod(int(extent) for extent in x.ty.shape):
            return convert(node, importer)
        x = cast(importer, x, conversion.result_dtype(node))
        emit = importer.block_builder.emit
        return emit(relax.op.reshape(emit(relax.op.abs(x)), shape))

    return converted


def _split(name: str, defaults: conversion.Defaults) -> conversion.Converter:
    """The parts; TVM gives no tuple of a single one."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        if len(node.meta["val"]) == 1:
            return relax.Tuple(arguments(node, importer, 3)[:1])
        return defaults.convert(name, node, importer)

    return converted


def _clamp(convert: conversion.Converter) -> conversion.Converter:
    """Integers between bounds of which one may be missing: TVM would take infinity for it; and
    between crossed bounds, where it takes the higher one and PyTorch the second one."""

    def converted(node: torch.fx.Node, importer: Any) -> Any:
        dtype = conversion.result_dtype(node)
        x, low, high = arguments(node, importer, 3)
        low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
        is_crossed = low is not None and high is not None and low > high
        if "float" in dtype and not is_crossed:
            return convert(node, importer)
        value, number = cast(importer, x, dtype), float if "float" in dtype else int
        for bound, limited in ((low, relax.op.maximum), (high, relax.op.minimum)):
            if bound is not None:
                constant = relax.const(number(bound), dtype)
                value = importer.block_builder.emit(limited(value, constant))
        return value

    return converted


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
    """scale * x where x > 0, else alpha * scale * (exp(x * input_scale) - 1); and SELU."""
    x, alpha, scale, input_scale = arguments(node, importer, 4)
    if "selu" in str(node.target):
        alpha, scale = _SELU
    emit, dtype = importer.block_builder.emit, str(x.ty.dtype)
    wide = accumulator(dtype)
    x = cast(importer, x, wide)
    alpha, scale, input_scale = (
        1.0 if each is None else float(each) for each in (alpha, scale, input_scale)
    )

    def times(value: Any, factor: float) -> Any:
        if factor == 1.0:
            return value
        return emit(relax.op.multiply(value, relax.const(factor, wide)))

    # Where x is positive the exponential is not read, and may not overflow.
    zero = relax.const(0.0, wide)
    is_positive = emit(relax.op.greater(x, zero))
    least = emit(relax.op.where(is_positive, zero, x))
    below = numerics.emit(importer.block_builder, "expm1", times(least, input_scale))
    result = emit(relax.op.where(is_positive, times(x, scale), times(below, alpha * scale)))
    return cast(importer, result, dtype)


def _hardtanh(node: torch.fx.Node, importer: Any) -> Any:
    x, low, high = arguments(node, importer, 3)
    low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    # Between crossed bounds everything is the second one.
    return importer.block_builder.emit(relax.op.clip(x, min(low, high), high))
