"""Scaled dot-product attention of PyTorch as TVM's attention operator, whole.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head. PyTorch has
[..., h, s, d]; TVM's operator has [b, s, h, d] and a bias of [b, h, s, t].

A mask of bools becomes an additive one: 0 where it is set, the least float32 elsewhere. A row in
which nothing is set is then an average of all values, where PyTorch gives zeros or NaN.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tvm import relax

from felix import errors

_SWAP_HEADS_AND_ROWS = [0, 2, 1, 3]
_DEFAULTS = {
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
_SIGNATURE = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in _DEFAULTS.items()
    ]
)


def convert(node: torch.fx.Node, importer: Any) -> Any:
    """The Relax expression of a node that is an attention."""
    call = _SIGNATURE.bind(*node.args, **node.kwargs)
    call.apply_defaults()
    options = call.arguments
    if options["dropout_p"]:
        raise errors.WorkloadError(
            "the PyTorch model cannot be imported: its attention has a dropout of "
            f"{options['dropout_p']}; pass 0 in inference"
        )
    emit = importer.block_builder.emit
    query, key, value = (importer.env[options[name]] for name in ("query", "key", "value"))
    result_shape = [*_shape(query)[:-1], _shape(value)[-1]]
    query, key, value = (_with_four_axes(emit, tensor) for tensor in (query, key, value))
    heads = _shape(query)[1]
    key, value = (_with_heads(emit, tensor, heads) for tensor in (key, value))
    mask = options["attn_mask"]
    result = emit(
        relax.op.nn.attention(
            *(emit(relax.op.permute_dims(t, _SWAP_HEADS_AND_ROWS)) for t in (query, key, value)),
            bias=None if mask is None else _bias(emit, importer.env[mask]),
            scale=options["scale"],
            causal_mask="TopLeft" if options["is_causal"] else None,
        )
    )
    result = emit(relax.op.permute_dims(result, _SWAP_HEADS_AND_ROWS))
    return result if len(result_shape) == 4 else emit(relax.op.reshape(result, result_shape))


def _shape(value: Any) -> list[int]:
    return [int(extent) for extent in value.ty.shape]


def _with_four_axes(emit: Callable[[Any], Any], tensor: Any) -> Any:
    """A tensor as [b, h, s, d]: leading extents are merged, missing ones are 1."""
    shape = _shape(tensor)
    if len(shape) == 4:
        return tensor
    padded = [1] * (4 - len(shape)) + shape
    return emit(relax.op.reshape(tensor, [math.prod(padded[:-3]), *padded[-3:]]))


def _with_heads(emit: Callable[[Any], Any], tensor: Any, heads: int) -> Any:
    """Keys or values with as many heads as the queries (grouped-query attention)."""
    count = _shape(tensor)[1]
    return tensor if count == heads else emit(relax.op.repeat(tensor, heads // count, axis=1))


def _bias(emit: Callable[[Any], Any], mask: Any) -> Any:
    """A mask as an additive one of float32 with four axes."""
    if str(mask.ty.dtype) == "bool":
        least = relax.const(np.finfo("float32").min, "float32")
        mask = emit(relax.op.where(mask, relax.const(0.0, "float32"), least))
    elif str(mask.ty.dtype) != "float32":
        mask = emit(relax.op.astype(mask, "float32"))
    return _with_four_axes(emit, mask)
