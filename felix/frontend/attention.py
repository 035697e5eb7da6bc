"""Attention as PyTorch and ONNX have it, by TVM's, which has rows in front of heads.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

_SWAP_HEADS_AND_ROWS = [0, 2, 1, 3]


def attention(
    builder: relax.BlockBuilder,
    tensors: tuple[Any, Any, Any],
    mask: Any | None,
    scale: float | None,
    is_causal: bool,
) -> Any:
    """softmax(query @ key^T * scale + mask) @ value, with the query's number of axes.

    Args:
        builder: of the function.
        tensors: queries [..., h, s, d], and keys and values [..., heads, t, d], where heads
            divides h (grouped-query attention).
        mask: added; where it is of bools, true where keys count.
        scale: 1 / sqrt(d), if left out.
        is_causal: whether keys behind a row do not count.
    """
    emit = builder.emit
    result_shape = [*_shape(tensors[0])[:-1], _shape(tensors[2])[-1]]
    query, key, value = (_with_four_axes(builder, tensor) for tensor in tensors)
    heads = _shape(query)[1]
    key, value = (_with_heads(builder, tensor, heads) for tensor in (key, value))
    result = emit(
        relax.op.nn.attention(
            *(emit(relax.op.permute_dims(t, _SWAP_HEADS_AND_ROWS)) for t in (query, key, value)),
            bias=None if mask is None else _bias(builder, mask),
            scale=scale,
            causal_mask="TopLeft" if is_causal else None,
        )
    )
    result = emit(relax.op.permute_dims(result, _SWAP_HEADS_AND_ROWS))
    return result if len(result_shape) == 4 else emit(relax.op.reshape(result, result_shape))


def _shape(value: Any) -> list[int]:
    return [int(extent) for extent in value.ty.shape]


def _with_four_axes(builder: relax.BlockBuilder, tensor: Any) -> Any:
    """A tensor as [b, h, s, d]: leading extents are merged, missing ones are 1."""
    shape = _shape(tensor)
    if len(shape) == 4:
        return tensor
    padded = [1] * (4 - len(shape)) + shape
    return builder.emit(relax.op.reshape(tensor, [math.prod(padded[:-3]), *padded[-3:]]))


def _with_heads(builder: relax.BlockBuilder, tensor: Any, heads: int) -> Any:
    """Keys or values with as many heads as the queries."""
    count = _shape(tensor)[1]
    if count == heads:
        return tensor
    return builder.emit(relax.op.repeat(tensor, heads // count, axis=1))


def _bias(builder: relax.BlockBuilder, mask: Any) -> Any:
    """A mask as an additive one of float32 with four axes."""
    if str(mask.ty.dtype) == "bool":
        least = relax.const(np.finfo("float32").min, "float32")
        mask = builder.emit(relax.op.where(mask, relax.const(0.0, "float32"), least))
    elif str(mask.ty.dtype) != "float32":
        mask = builder.emit(relax.op.astype(mask, "float32"))
    return _with_four_axes(builder, mask)
