"""Conversions of ATen operators that replace TVM's own.

TVM's importer gives products and convolutions the type float32 whatever their operands are, lacks
transposed convolution in three dimensions, layer norm of bfloat16 and RMS norm, and drops
arguments of some operators. Here operands of 16 bits are summed in float32 and rounded once, as
PyTorch does it: what follows in float32 is fused behind it. With indices that count from the end
TVM reads outside of the tensor, and several indices behind a whole dimension give it their outer
product: here the result is PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from felix.frontend.pytorch import attention

#: A node of the graph and TVM's importer -> the Relax expression of the node's value.
Converter = Callable[[torch.fx.Node, Any], Any]

_HALF = frozenset({"float16", "bfloat16"})
#: Operators of one tensor that PyTorch computes in float32 for tensors of 16 bits.
_IN_FLOAT32 = (
    "cos.default", "erf.default", "exp.default", "gelu.default",
    "hardsigmoid.default", "hardswish.default", "leaky_relu.default", "log.default",
    "log_softmax.int", "_log_softmax.default", "mean.dim", "mean.default", "pow.Tensor_Scalar",
    "reciprocal.default", "rsqrt.default", "selu.default", "sigmoid.default", "silu.default",
    "sin.default", "softmax.int", "_softmax.default", "softplus.default", "sqrt.default",
    "sum.default", "sum.dim_IntList", "tan.default", "tanh.default", "var.correction",
    "std.correction",
)  # fmt: skip
#: Operators of two operands, which PyTorch computes in the type that they have in common;
_PROMOTED = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "div.Tensor_mode", "fmod.Scalar",
    "fmod.Tensor", "remainder.Scalar", "remainder.Tensor", "maximum.default", "minimum.default",
    "pow.Tensor_Tensor", "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar",
    "lt.Tensor", "le.Scalar", "le.Tensor", "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor",
)  # fmt: skip
#: what they are of two booleans.
_LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "add.Tensor": relax.op.logical_or, "mul.Tensor": relax.op.logical_and,
    "maximum.default": relax.op.logical_or, "minimum.default": relax.op.logical_and,
}  # fmt: skip
#: Operators whose first operand has the result's type before they are computed.
_WIDENING = ("clamp.default", "cumprod.default", "cumsum.default")
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def convert_map() -> dict[str, Converter]:
    """The conversions by the operators' names, for one import."""
    defaults: dict[str, Callable[[torch.fx.Node], Any]] = {}
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
        "select.int": _select,
        "index.Tensor": _index(defaults),
        "take.default": _take,
        "hardtanh.default": _hardtanh,
        "elu.default": _elu,
        "native_group_norm.default": _group_norm,
        "_native_batch_norm_legit_no_training.default": _batch_norm,
        "scaled_dot_product_attention.default": attention.convert,
        **{name: _in_float32(name, defaults) for name in _IN_FLOAT32},
        **{name: _promoted(name, defaults) for name in _PROMOTED},
        **{name: _in_its_result_type(name, defaults) for name in _WIDENING},
    }


def _in_float32(name: str, defaults: dict[str, Callable[[torch.fx.Node], Any]]) -> Converter:
    """TVM's conversion of an operator, computed in float32 where its first operand has 16 bits."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        if not defaults:
            defaults.update(importer.create_convert_map())
        source = node.args[0]
        operand = importer.env[source]
        if str(operand.ty.dtype) not in _HALF:
            return defaults[name](node)
        importer.env[source] = _cast(importer, operand, "float32")
        try:
            result = defaults[name](node)
        finally:
            importer.env[source] = operand
        return _cast(importer, result, str(node.meta["val"].dtype).removeprefix("torch."))

    return convert


def _in_its_result_type(
    name: str, defaults: dict[str, Callable[[torch.fx.Node], Any]]
) -> Converter:
    """TVM's conversion of an operator, given its first operand in the type of its result."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        if not defaults:
            defaults.update(importer.create_convert_map())
        source = node.args[0]
        operand = importer.env[source]
        wanted = str(node.meta["val"].dtype).removeprefix("torch.")
        importer.env[source] = _cast(importer, operand, wanted)
        try:
            return defaults[name](node)
        finally:
            importer.env[source] = operand

    return convert


def _promoted(name: str, defaults: dict[str, Callable[[torch.fx.Node], Any]]) -> Converter:
    """TVM's conversion of an operator of two operands, given both in the type that they have in
    common. TVM takes the type of a tensor for a number beside it."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        if not defaults:
            defaults.update(importer.create_convert_map())
        dtype = _common_type(name, node)
        if dtype is torch.bool and name in _LOGICAL:
            return importer.block_builder.emit(_LOGICAL[name](*_arguments(node, importer, 2)))
        places = [each for each in node.args[:2] if isinstance(each, torch.fx.Node)]
        before = {each: importer.env[each] for each in places}
        wanted = str(dtype).removeprefix("torch.")
        importer.env.update({n: _cast(importer, value, wanted) for n, value in before.items()})
        try:
            return defaults[name](node)
        finally:
            importer.env.update(before)

    return convert


def _common_type(name: str, node: torch.fx.Node) -> torch.dtype:
    values: list[Any] = [
        each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in node.args[:2]
    ]
    dtype = torch.result_type(*values)
    is_whole = not dtype.is_floating_point and not dtype.is_complex
    divides = name == "div.Tensor"
    return torch.get_default_dtype() if divides and is_whole else dtype


def _select(node: torch.fx.Node, importer: Any) -> Any:
    x, dim, index = _arguments(node, importer, 3)
    index += int(x.ty.shape[dim]) if index < 0 else 0
    return importer.block_builder.emit(relax.op.take(x, relax.const(index, "int64"), axis=dim))


def _take(node: torch.fx.Node, importer: Any) -> Any:
    x, indices = _arguments(node, importer, 2)
    size = math.prod(int(extent) for extent in x.ty.shape)
    flat = importer.block_builder.emit(relax.op.reshape(x, [size]))
    indices = _from_the_beginning(importer, indices, size)
    return importer.block_builder.emit(relax.op.take(flat, indices, axis=0))


def _index(defaults: dict[str, Callable[[torch.fx.Node], Any]]) -> Converter:
    """x[i, :, j] with tensors of integers, which are broadcast against each other.

    Where the dimensions that they index are neighbours, theirs take the place of these; otherwise
    theirs are the first ones.
    """

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        x, indices = _arguments(node, importer, 2)
        if not all(each is None or str(each.ty.dtype).startswith("int") for each in indices):
            if not defaults:
                defaults.update(importer.create_convert_map())
            return defaults["index.Tensor"](node)  # masks
        emit, shape = importer.block_builder.emit, [int(extent) for extent in x.ty.shape]
        axes = [axis for axis, each in enumerate(indices) if each is not None]
        chosen = [_from_the_beginning(importer, indices[axis], shape[axis]) for axis in axes]
        if len(axes) == 1:
            return emit(relax.op.take(x, chosen[0], axis=axes[0]))
        left = [axis for axis in range(len(shape)) if axis not in axes]
        if axes[-1] >= len(axes):
            x = emit(relax.op.permute_dims(x, [*axes, *left]))
        result = emit(relax.op.index_tensor(x, chosen))
        n_before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
        if not n_before:
            return result
        n_chosen = len(result.ty.shape) - len(left)
        places = [*range(n_chosen, n_chosen + n_before), *range(n_chosen)]
        places += range(n_chosen + n_before, len(result.ty.shape))
        return emit(relax.op.permute_dims(result, places))

    return convert


def _from_the_beginning(importer: Any, index: Any, extent: int) -> Any:
    dtype = str(index.ty.dtype)
    if not dtype.startswith("int"):  # a mask
        return index
    emit = importer.block_builder.emit
    is_negative = emit(relax.op.less(index, relax.const(0, dtype)))
    moved = emit(relax.op.add(index, relax.const(extent, dtype)))
    return emit(relax.op.where(is_negative, moved, index))


def _cast(importer: Any, value: Any, dtype: str) -> Any:
    if str(value.ty.dtype) == dtype:
        return value
    return importer.block_builder.emit(relax.op.astype(value, dtype))


def _accumulator(dtype: str) -> str:
    return "float32" if dtype in _HALF else dtype


def _product(importer: Any, left: Any, right: Any, bias: Any | None) -> Any:
    """left @ right + bias, summed in the accumulator's type and rounded once."""
    emit, dtype = importer.block_builder.emit, str(left.ty.dtype)
    wide = _accumulator(dtype)
    result = emit(relax.op.matmul(left, right, out_dtype=wide))
    if bias is not None:
        result = emit(relax.op.add(result, _cast(importer, bias, wide)))
    return _cast(importer, result, dtype)


def _linear(node: torch.fx.Node, importer: Any) -> Any:
    x, weight, bias = _arguments(node, importer, 3)
    if len(weight.ty.shape) > 1:
        weight = importer.block_builder.emit(relax.op.permute_dims(weight))
    return _product(importer, x, weight, bias)


def _matmul(node: torch.fx.Node, importer: Any) -> Any:
    left, right = _arguments(node, importer, 2)
    return _product(importer, left, right, None)


def _addmm(node: torch.fx.Node, importer: Any) -> Any:
    bias, left, right = _arguments(node, importer, 3)
    emit, dtype = importer.block_builder.emit, str(left.ty.dtype)
    wide = _accumulator(dtype)
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    result = emit(relax.op.matmul(left, right, out_dtype=wide))
    if alpha != 1:
        result = emit(relax.op.multiply(result, relax.const(alpha, wide)))
    if beta != 0:
        bias = _cast(importer, bias, wide)
        if beta != 1:
            bias = emit(relax.op.multiply(bias, relax.const(beta, wide)))
        result = emit(relax.op.add(result, bias))
    return _cast(importer, result, dtype)


def _convolution(node: torch.fx.Node, importer: Any) -> Any:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = _arguments(
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
        "out_dtype": _accumulator(dtype),
    }
    if transposed:
        options["output_padding"] = _extents(output_padding, n_spatial)
    operator = getattr(relax.op.nn, f"conv{n_spatial}d{'_transpose' if transposed else ''}")
    result = emit(operator(x, weight, **options))
    if bias is not None:
        shape = (1, -1, *[1] * n_spatial)
        wide = _cast(importer, bias, _accumulator(dtype))
        result = emit(relax.op.add(result, emit(relax.op.reshape(wide, shape))))
    result = _cast(importer, result, dtype)
    return emit(relax.op.squeeze(result, [0])) if is_single else result


def _extents(values: Sequence[int], n_spatial: int) -> list[int]:
    """One value for each spatial dimension; PyTorch lets one stand for all."""
    return list(values) * n_spatial if len(values) == 1 else list(values)


def _layer_norm(node: torch.fx.Node, importer: Any) -> Any:
    x, shape, gamma, beta, epsilon = _arguments(node, importer, 5)
    dtype = str(x.ty.dtype)
    wide = _accumulator(dtype)
    result = importer.block_builder.emit(
        relax.op.nn.layer_norm(
            _cast(importer, x, wide),
            _scale(importer, gamma, shape, wide, np.ones),
            _scale(importer, beta, shape, wide, np.zeros),
            axes=list(range(-len(shape), 0)),
            epsilon=1e-5 if epsilon is None else epsilon,
        )
    )
    return _cast(importer, result, dtype)


def _batch_norm(node: torch.fx.Node, importer: Any) -> Any:
    """With running statistics; the statistics and factors may be of a wider type than x."""
    x, gamma, beta, mean, variance, _, epsilon = _arguments(node, importer, 7)
    n_channels, dtype = int(x.ty.shape[1]), str(x.ty.dtype)
    types = {str(each.ty.dtype) for each in (gamma, beta, mean, variance) if each is not None}
    wide = dtype if types <= {dtype} else _accumulator(dtype)
    result = importer.block_builder.emit(
        relax.op.nn.batch_norm(
            _cast(importer, x, wide),
            _scale(importer, gamma, [n_channels], wide, np.ones),
            _scale(importer, beta, [n_channels], wide, np.zeros),
            _cast(importer, mean, wide),
            _cast(importer, variance, wide),
            axis=1,
            epsilon=epsilon,
            training=False,
        )
    )
    normalised = importer.block_builder.emit(relax.TupleGetItem(result, 0))
    empty = [importer.block_builder.emit(relax.TupleGetItem(result, number)) for number in (1, 2)]
    return relax.Tuple([_cast(importer, normalised, dtype), *empty])


def _rms_norm(node: torch.fx.Node, importer: Any) -> Any:
    x, shape, weight, epsilon = _arguments(node, importer, 4)
    dtype = str(x.ty.dtype)
    wide = _accumulator(dtype)
    least = torch.finfo(getattr(torch, wide)).eps
    result = importer.block_builder.emit(
        relax.op.nn.rms_norm(
            _cast(importer, x, wide),
            _scale(importer, weight, shape, wide, np.ones),
            axes=list(range(-len(shape), 0)),
            epsilon=least if epsilon is None else epsilon,
        )
    )
    return _cast(importer, result, dtype)


def _scale(importer: Any, value: Any, shape: Sequence[int], dtype: str, fill: Any) -> Any:
    if value is None:
        return relax.const(fill([int(extent) for extent in shape], dtype), dtype)
    return _cast(importer, value, dtype)


def _group_norm(node: torch.fx.Node, importer: Any) -> Any:
    """The normalised tensor; means and factors of the groups are not given."""
    x, gamma, beta, _, channels, _, groups, epsilon = _arguments(node, importer, 8)
    dtype = str(x.ty.dtype)
    wide = _accumulator(dtype)
    result = importer.block_builder.emit(
        relax.op.nn.group_norm(
            _cast(importer, x, wide),
            _scale(importer, gamma, [channels], wide, np.ones),
            _scale(importer, beta, [channels], wide, np.zeros),
            num_groups=groups,
            channel_axis=1,
            axes=list(range(2, len(x.ty.shape))),
            epsilon=epsilon,
        )
    )
    return relax.Tuple([_cast(importer, result, dtype)])


def _elu(node: torch.fx.Node, importer: Any) -> Any:
    """scale * x where x > 0, else alpha * scale * (exp(x * input_scale) - 1)."""
    x, alpha, scale, input_scale = _arguments(node, importer, 4)
    emit, dtype = importer.block_builder.emit, str(x.ty.dtype)
    wide = _accumulator(dtype)
    x = _cast(importer, x, wide)
    alpha, scale, input_scale = (
        1.0 if each is None else float(each) for each in (alpha, scale, input_scale)
    )

    def times(value: Any, factor: float) -> Any:
        if factor == 1.0:
            return value
        return emit(relax.op.multiply(value, relax.const(factor, wide)))

    # Where x is positive the exponential is not read, and may not overflow.
    least = emit(relax.op.minimum(x, relax.const(0.0, wide)))
    below = emit(relax.op.exp(times(least, input_scale)))
    below = emit(relax.op.subtract(below, relax.const(1.0, wide)))
    is_positive = emit(relax.op.greater(x, relax.const(0.0, wide)))
    result = emit(relax.op.where(is_positive, times(x, scale), times(below, alpha * scale)))
    return _cast(importer, result, dtype)


def _hardtanh(node: torch.fx.Node, importer: Any) -> Any:
    x, low, high = _arguments(node, importer, 3)
    low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    return importer.block_builder.emit(relax.op.clip(x, low, high))


def _arguments(node: torch.fx.Node, importer: Any, count: int) -> list[Any]:
    """A node's first operands by position, with those that it leaves out as None."""
    values = [importer._retrieve_args(argument) for argument in node.args[:count]]
    return values + [None] * (count - len(values))
