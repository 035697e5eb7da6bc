"""Attention of PyTorch and ONNX as TVM's operator, whole.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head. The models have
[..., h, s, d]; TVM's operator has [b, s, h, d] and a bias of [b, h, s, t].

A mask of bools becomes an additive one: 0 where it is set, minus infinity elsewhere. A row of
nothing but minus infinity gives zeros, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax


def attention(
    emit: Callable[[Any], Any],
    tensors: Sequence[Any],
    mask: Any | None,
    scale: float | None,
    is_causal: bool,
) -> Any:
    """softmax(query @ key^T * scale + mask) @ value of these three tensors.

    Keys and values may have fewer heads than queries (grouped-query attention).
    """
    shape = [*_shape(tensors[0])[:-1], _shape(tensors[2])[-1]]
    operands = [_with_four_axes(emit, tensor) for tensor in tensors]
    heads = _shape(operands[0])[1]
    for number, tensor in enumerate(operands):
        if _shape(tensor)[1] != heads:
            tensor = emit(relax.op.repeat(tensor, heads // _shape(tensor)[1], axis=1))
        operands[number] = emit(relax.op.permute_dims(tensor, [0, 2, 1, 3]))
    bias = None if mask is None else _bias(emit, mask)
    causal = "TopLeft" if is_causal else None
    result = emit(relax.op.nn.attention(*operands, bias=bias, scale=scale, causal_mask=causal))
    result = emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
    return result if len(shape) == 4 else emit(relax.op.reshape(result, shape))


def _shape(value: Any) -> list[int]:
    return [int(extent) for extent in value.ty.shape]


def _with_four_axes(emit: Callable[[Any], Any], tensor: Any) -> Any:
    """A tensor as [b, h, s, d]: leading extents are merged, missing ones are 1."""
    shape = _shape(tensor)
    if len(shape) == 4:
        return tensor
    padded = [1] * (4 - len(shape)) + shape
    return emit(relax.op.reshape(tensor, [math.prod(padded[:-3]), *padded[-3:]]))


def _bias(emit: Callable[[Any], Any], mask: Any) -> Any:
    """A mask as an additive one with four axes, of float32 unless it is wider."""
    if str(mask.ty.dtype) == "bool":
        none = relax.const(-np.inf, "float32")
        mask = emit(relax.op.where(mask, relax.const(0.0, "float32"), none))
    elif str(mask.ty.dtype) not in ("float32", "float64"):
        mask = emit(relax.op.astype(mask, "float32"))
    return _with_four_axes(emit, mask)
