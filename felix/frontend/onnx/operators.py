"""Conversions of ONNX operators that TVM lacks.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from felix.frontend.onnx import constants, recurrent

_SWAP_HEADS_AND_ROWS = [0, 2, 1, 3]
#: Attributes of ONNX's attention that must be 0 or left out.
_UNSUPPORTED = ("softcap", "qk_matmul_output_mode", "kv_num_heads", "q_num_heads")


def convert(
    importer: Any, unroller: recurrent.Unroller, operator: str, inputs: Any,
    attributes: Mapping[str, Any],
) -> Any:  # fmt: skip
    """The Relax expression of a node, or None where TVM's own conversion holds.

    Raises:
        ValueError: inputs or attributes that are not supported.
    """
    folded = constants.fold(importer, operator, inputs, attributes)
    if folded is not None:
        return folded
    if operator in recurrent.GATES:
        return unroller.convert(operator, inputs, attributes)
    # Microsoft's operator of the name must have `num_heads`, ONNX's has no such attribute.
    if operator == "Attention" and "num_heads" not in attributes:
        return importer.bb.normalize(_attention(importer.bb, inputs, attributes))
    return None


def _attention(bb: Any, inputs: Any, attributes: Mapping[str, Any]) -> Any:
    """ONNX's attention of [b, h, s, d], as TVM's, which has [b, s, h, d]."""
    query, key, value, mask = (inputs[i] for i in range(4))
    if any(tensor is None for tensor in (query, key, value)):
        raise ValueError("attention needs queries, keys and values")
    if any(inputs[i] is not None for i in range(4, 7)):
        raise ValueError("attention with earlier keys is not supported")
    if any(attributes.get(name) for name in _UNSUPPORTED):
        raise ValueError("attention has an attribute that is not supported")
    shapes = [_shape(tensor) for tensor in (query, key, value)]
    (b, h, _, d), (_, heads, t, _), _ = shapes
    if shapes[1] != [b, heads, t, d] or shapes[2][:3] != [b, heads, t] or h % heads:
        raise ValueError("shapes of queries, keys and values do not fit")
    if heads != h:
        key, value = (bb.normalize(relax.op.repeat(x, h // heads, axis=1)) for x in (key, value))
    swapped = (
        bb.normalize(relax.op.permute_dims(x, _SWAP_HEADS_AND_ROWS)) for x in (query, key, value)
    )
    result = relax.op.nn.attention(
        *(bb.emit(tensor) for tensor in swapped),
        bias=None if mask is None else _bias(bb, mask),
        scale=attributes.get("scale"),
        causal_mask="TopLeft" if attributes.get("is_causal") else None,
    )
    return relax.op.permute_dims(bb.emit(result), _SWAP_HEADS_AND_ROWS)


def _shape(tensor: Any) -> list[int]:
    """Four known extents."""
    extents = [int(extent) for extent in tensor.ty.shape]
    if len(extents) != 4:
        raise ValueError("attention needs tensors of four axes")
    return extents


def _bias(bb: Any, mask: Any) -> Any:
    """A mask of up to four axes as an additive one of float32; bools are true where keys count."""
    if str(mask.ty.dtype) == "bool":
        least = relax.const(np.finfo("float32").min, "float32")
        mask = bb.emit(relax.op.where(mask, relax.const(0.0, "float32"), least))
    elif str(mask.ty.dtype) != "float32":
        mask = bb.emit(relax.op.astype(mask, "float32"))
    extents = [int(extent) for extent in mask.ty.shape]
    if len(extents) > 4:
        raise ValueError("the mask of an attention has more than four axes")
    return bb.emit(relax.op.reshape(mask, [1] * (4 - len(extents)) + extents))
