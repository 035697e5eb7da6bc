"""Layers that PyTorch and ONNX both have, as TVM's operators.

16-bit floats are summed in float32 and rounded once, behind a bias. The functions emit values by a
function that binds one.

Notation of attention: b batch, h heads, s and t rows of queries and keys, d extent of a head. The
models have [..., h, s, d]; TVM's operator has [b, s, h, d] and a bias of [b, h, s, t].
A mask of bools becomes an additive one: 0 where it is set, minus infinity elsewhere. A row of
nothing but minus infinity gives zeros, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend import numerics
from felix.tir.rounding import accumulator

#: Binds a value; the variable.
Emit: TypeAlias = "Callable[[Any], Any]"

#: Number of spatial axes -> their letters in TVM's layouts.
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def dtype_of(value: Any) -> str:
    """The element type of a Relax tensor."""
    return str(value.ty.dtype)


def shape_of(value: Any) -> list[int]:
    """The extents of a Relax tensor."""
    return [int(extent) for extent in value.ty.shape]


def cast(emit: Emit, value: Any, dtype: str) -> Any:
    """A value in an element type; itself, if it has that."""
    return value if dtype_of(value) == dtype else emit(relax.op.astype(value, dtype))


def from_the_beginning(emit: Emit, index: Any, extent: int) -> Any:
    """Indices of an axis, of which those below 0 count from its end, counted from its begin."""
    dtype = dtype_of(index)
    is_negative = emit(relax.op.less(index, relax.const(0, dtype)))
    moved = emit(relax.op.add(index, relax.const(extent, dtype)))
    return emit(relax.op.where(is_negative, moved, index))


def product(
    emit: Emit, left: Any, right: Any, term: Any = None, alpha: float = 1, beta: float = 1
) -> Any:
    """alpha left @ right + beta term.

    Raises:
        WorkloadError: integers times a fraction.
    """
    dtype = dtype_of(left)
    wide = accumulator(dtype)
    result = _times(emit, emit(relax.op.matmul(left, right, out_dtype=wide)), alpha)
    if term is not None and beta:
        result = emit(relax.op.add(result, _times(emit, cast(emit, term, wide), beta)))
    return cast(emit, result, dtype)


def _times(emit: Emit, x: Any, factor: float) -> Any:
    if factor == 1:
        return x
    if "float" not in dtype_of(x) and not float(factor).is_integer():
        raise errors.WorkloadError(f"integers by the fraction {factor:g} are not supported")
    return emit(relax.op.multiply(x, relax.const(factor, dtype_of(x))))


def convolution(
    emit: Emit, tensors: Sequence[Any], is_transposed: bool, groups: int, **window: Sequence[int]
) -> Any:
    """A convolution of [n, c, ...].

    Args:
        emit: binds a value.
        tensors: what is convolved, weights [o, i, ...], or [i, o, ...] if it is transposed, and a
            bias or None.
        is_transposed: whether it is a transposed one.
        groups: of channels.
        window: how it moves, as TVM calls that.
    """
    x, weight, bias = tensors
    wide, letters = accumulator(dtype_of(x)), SPATIAL[len(weight.ty.shape) - 2]
    operator = f"conv{len(letters)}d{'_transpose' if is_transposed else ''}"
    options: dict[str, Any] = {
        "groups": groups,
        "data_layout": f"NC{letters}",
        "kernel_layout": f"{'IO' if is_transposed else 'OI'}{letters}",
        "out_dtype": wide,
    }
    result = emit(getattr(relax.op.nn, operator)(x, weight, **window, **options))
    if bias is not None:
        per_channel = (1, -1, *[1] * len(letters))
        term = emit(relax.op.reshape(cast(emit, bias, wide), per_channel))
        result = emit(relax.op.add(result, term))
    return cast(emit, result, dtype_of(x))


def norm(
    emit: Emit, operator: Any, x: Any, scales: Sequence[Any], shape: Sequence[int], **options: Any
) -> Any:
    """A norm of x, whose operator has these options.

    Args:
        emit: binds a value.
        operator: of Relax.
        x: what is normalised.
        scales: a factor and, of some norms, a term, of this shape; None for ones and zeros.
        shape: of the scales.
        options: of the operator.
    """
    wide = accumulator(dtype_of(x))
    fills = zip(scales, (np.ones, np.zeros), strict=False)
    filled = [scale(emit, each, shape, wide, fill) for each, fill in fills]
    result = emit(operator(cast(emit, x, wide), *filled, **options))
    return cast(emit, result, dtype_of(x))


def scale(emit: Emit, value: Any, shape: Sequence[int], dtype: str, fill: Any) -> Any:
    """A norm's factor or term in an element type; `fill` makes that of None."""
    if value is None:
        return relax.const(fill([int(extent) for extent in shape], dtype), dtype)
    return cast(emit, value, dtype)


def rms_norm(emit: Emit, x: Any, weight: Any, shape: Sequence[int], epsilon: float) -> Any:
    """x over the root mean square of its last axes, whose extents are `shape`."""
    options = {"axes": list(range(-len(shape), 0)), "epsilon": epsilon}
    if len(shape) < len(x.ty.shape):
        return norm(emit, relax.op.nn.rms_norm, x, (weight,), shape, **options)
    # TVM has no program where nothing is left of the shape.
    x = emit(relax.op.expand_dims(x, 0))
    result = norm(emit, relax.op.nn.rms_norm, x, (weight,), shape, **options)
    return emit(relax.op.squeeze(result, [0]))


def elu(
    builder: relax.BlockBuilder,
    x: Any,
    alpha: float = 1.0,
    factor: float = 1.0,
    inner: float = 1.0,
) -> Any:
    """factor * x where x > 0, else alpha * factor * (exp(x * inner) - 1)."""
    emit, dtype = builder.emit, dtype_of(x)
    x = cast(emit, x, accumulator(dtype))
    # Where x is positive the exponential is not read, and may not overflow.
    zero = relax.const(0.0, dtype_of(x))
    is_positive = emit(relax.op.greater(x, zero))
    least = emit(relax.op.where(is_positive, zero, x))
    below = numerics.emit(builder, "expm1", _times(emit, least, inner))
    above, below = _times(emit, x, factor), _times(emit, below, alpha * factor)
    return cast(emit, emit(relax.op.where(is_positive, above, below)), dtype)


def attention(
    emit: Emit, tensors: Sequence[Any], mask: Any | None, scale: float | None, is_causal: bool
) -> Any:
    """softmax(query @ key^T * scale + mask) @ value of these three tensors.

    Keys and values may have fewer heads than queries (grouped-query attention).
    """
    shape = [*shape_of(tensors[0])[:-1], shape_of(tensors[2])[-1]]
    operands = [_with_four_axes(emit, tensor) for tensor in tensors]
    heads = shape_of(operands[0])[1]
    for number, tensor in enumerate(operands):
        if shape_of(tensor)[1] != heads:
            tensor = emit(relax.op.repeat(tensor, heads // shape_of(tensor)[1], axis=1))
        operands[number] = emit(relax.op.permute_dims(tensor, [0, 2, 1, 3]))
    bias = None if mask is None else _bias(emit, mask)
    causal = "TopLeft" if is_causal else None
    result = emit(relax.op.nn.attention(*operands, bias=bias, scale=scale, causal_mask=causal))
    result = emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
    return result if len(shape) == 4 else emit(relax.op.reshape(result, shape))


def _with_four_axes(emit: Emit, tensor: Any) -> Any:
    """A tensor as [b, h, s, d]: leading extents are merged, missing ones are 1."""
    shape = shape_of(tensor)
    if len(shape) == 4:
        return tensor
    padded = [1] * (4 - len(shape)) + shape
    return emit(relax.op.reshape(tensor, [math.prod(padded[:-3]), *padded[-3:]]))


def _bias(emit: Emit, mask: Any) -> Any:
    """A mask as an additive one with four axes, of float32 unless it is wider."""
    if dtype_of(mask) == "bool":
        none = relax.const(-np.inf, "float32")
        mask = emit(relax.op.where(mask, relax.const(0.0, "float32"), none))
    elif dtype_of(mask) not in ("float32", "float64"):
        mask = emit(relax.op.astype(mask, "float32"))
    return _with_four_axes(emit, mask)
