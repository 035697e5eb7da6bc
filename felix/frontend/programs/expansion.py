"""Attention as two products and a softmax, before operators are lowered.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head. TVM would lower
an attention to one program, whose two products and softmax no schedule can tile together. Here
it becomes softmax(q @ k^T * scale + bias) @ v in the layout [b, h, s, d], summed in float32; the
permutations to TVM's layout [b, s, h, d] and back cancel with those that the importer wrote.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, te, tirx

from felix import errors
from felix.frontend.rewriting import Rewriter, operator_name
from felix.frontend.torch_calls import annotation

_SWAP_HEADS_AND_ROWS = [0, 2, 1, 3]
_ATTENTION = ("nn.attention", "nn.attention_bias")


def expand_attention(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without attention operators.

    Raises:
        WorkloadError: an attention has a window.
    """
    expanded = Rewriter(mod).run(_rule)
    return relax.transform.DeadCodeElimination()(expanded)


def _rule(rewriter: Rewriter, value: Any) -> Any:
    name = operator_name(value)
    if name in _ATTENTION:
        return _expanded(rewriter, value)
    if name == "permute_dims" and _axes(value) == _SWAP_HEADS_AND_ROWS:
        return _swapped(rewriter, value.args[0], emit=False)
    return None


def _axes(value: Any) -> list[int] | None:
    return None if value.attrs.axes is None else [int(axis) for axis in value.attrs.axes]


def _swapped(rewriter: Rewriter, var: Any, emit: bool = True) -> Any:
    """A tensor with heads and rows exchanged; what it was exchanged from, where it was."""
    producer = rewriter.value(var, "permute_dims")
    if producer is not None and _axes(producer) == _SWAP_HEADS_AND_ROWS:
        return producer.args[0]
    return rewriter.emit(relax.op.permute_dims(var, _SWAP_HEADS_AND_ROWS)) if emit else None


def _expanded(rewriter: Rewriter, call: Any) -> Any:
    if call.attrs.window_size is not None:
        raise errors.WorkloadError(
            "the model cannot be lowered: attention with a window is not supported; give the "
            "window as a mask"
        )
    query, key, value = (_swapped(rewriter, tensor) for tensor in call.args[:3])
    bias = call.args[3] if len(call.args) > 3 else None
    emit, dtype = rewriter.emit, str(query.ty.dtype)
    wide = "float64" if dtype == "float64" else "float32"
    columns = emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
    scores = emit(relax.op.matmul(query, columns, out_dtype=wide))
    scale = call.attrs.scale
    factor = 1 / math.sqrt(int(query.ty.shape[-1])) if scale is None else float(scale)
    scores = emit(relax.op.multiply(scores, relax.const(factor, wide)))
    if bias is not None:
        scores = emit(relax.op.add(scores, bias))
    if call.attrs.causal_mask is not None:
        scores = _causal(rewriter, scores, str(call.attrs.causal_mask))
    weights = emit(relax.op.nn.softmax(scores, -1))
    if dtype != wide:
        weights = emit(relax.op.astype(weights, dtype))
    result = emit(relax.op.matmul(weights, value, out_dtype=wide))
    if dtype != wide:
        result = emit(relax.op.astype(result, dtype))
    return emit(relax.op.permute_dims(result, _SWAP_HEADS_AND_ROWS))


def _causal(rewriter: Rewriter, scores: Any, kind: str) -> Any:
    """Scores with those of later keys at the least value of their type."""
    rows, columns = (int(extent) for extent in list(scores.ty.shape)[-2:])
    offset = columns - rows if kind == "BottomRight" else 0

    def causal_mask(x: te.Tensor) -> te.Tensor:
        least = tirx.min_value(x.dtype)
        return te.compute(
            x.shape,
            lambda b, h, s, t: tirx.if_then_else(t <= s + offset, x[b, h, s, t], least),
            name="causal_mask",
        )

    known = annotation.attributes("causal_mask", 1, str(scores.ty.dtype)) if not offset else None
    return rewriter.builder.emit_te(
        causal_mask, scores, primfunc_name_hint="causal_mask", primfunc_attrs=known
    )
