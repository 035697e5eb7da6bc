"""Operators written as others before they are lowered: attention, products of transposed matrices,
splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from felix import errors
from felix.frontend import layers, torch_forms
from felix.frontend.rewriting import Rewriter, operator_name

# Attention as two products and a softmax, before operators are lowered.
#
# Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head. TVM would
# lower an attention to one program, whose two products and softmax no schedule can tile
# together. Here it becomes softmax(q @ k^T * scale + bias) @ v in the layout [b, h, s, d],
# summed in float32; the permutations to TVM's layout [b, s, h, d] and back cancel with those
# that the importer wrote.

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
    if bias is None:
        weights = emit(relax.op.nn.softmax(scores, -1))
    else:
        weights = rewriter.builder.emit_te(
            _masked_softmax,
            scores,
            primfunc_name_hint="softmax",
            primfunc_attrs=torch_forms.attributes("masked_softmax", 1, wide),
        )
    weights = layers.cast(emit, weights, dtype)
    result = emit(relax.op.matmul(weights, value, out_dtype=wide))
    result = layers.cast(emit, result, dtype)
    return emit(relax.op.permute_dims(result, _SWAP_HEADS_AND_ROWS))


def _masked_softmax(x: te.Tensor) -> te.Tensor:
    """Softmax of the last axis, and zeros for rows of minus infinity, whose sum of powers is 0."""
    *lead, extent = x.shape
    axes = [te.reduce_axis((0, extent), name=name) for name in ("k", "k2")]
    largest = te.compute(
        lead, lambda *i: te.max(x(*i, axes[0]), axis=axes[0]), name="T_softmax_maxelem"
    )
    powers = te.compute(x.shape, lambda *i: te.exp(x(*i) - largest(*i[:-1])), name="T_softmax_exp")
    total = te.compute(
        lead, lambda *i: te.sum(powers(*i, axes[1]), axis=axes[1]), name="T_softmax_expsum"
    )
    least = tirx.const(np.finfo(str(x.dtype)).tiny, str(x.dtype))  # others are 1 or more
    return te.compute(
        x.shape,
        lambda *i: powers(*i) / tirx.max(total(*i[:-1]), least),
        name="T_softmax_norm",
        tag="softmax_output",
        attrs={"axis": len(lead)},
    )


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

    known = torch_forms.attributes("causal_mask", 1, str(scores.ty.dtype)) if not offset else None
    return rewriter.builder.emit_te(
        causal_mask, scores, primfunc_name_hint="causal_mask", primfunc_attrs=known
    )


# Matrix products with a transposed right operand, read as it lies.
#
# a @ permute_dims(b) of the last two axes, as linear layers and attention write it, becomes one
# program out[..., m, n] = sum_k a[..., m, k] * b[..., n, k].


def fuse_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with such products in place of transposition and product."""
    return relax.transform.DeadCodeElimination()(Rewriter(mod).run(_transposed_rule))


def _transposed_rule(rewriter: Rewriter, value: Any) -> Any:
    if operator_name(value) != "matmul":
        return None
    left, right = value.args
    transposition = rewriter.value(right, "permute_dims")
    shapes = [tensor.ty.shape for tensor in (left, right)]
    if not all(isinstance(s, relax.ShapeExpr) and len(s) > 1 for s in shapes):
        return None
    if transposition is None or not _swaps_last_two(transposition):
        return None
    dtype = str(rewriter.builder.normalize(value).ty.dtype)
    return rewriter.builder.emit_te(
        _product,
        left,
        transposition.args[0],
        dtype,
        primfunc_name_hint="NT_matmul",
        primfunc_attrs=torch_forms.attributes("matmul_transposed", 2, dtype),
    )


def _swaps_last_two(call: Any) -> bool:
    rank = len(call.args[0].ty.shape)
    axes = list(range(rank))[::-1] if call.attrs.axes is None else list(call.attrs.axes)
    return [int(axis) % rank for axis in axes] == [*range(rank - 2), rank - 1, rank - 2]


def _product(left: te.Tensor, right: te.Tensor, dtype: str) -> te.Tensor:
    k = te.reduce_axis((0, left.shape[-1]), name="k")
    outer = ([int(extent) for extent in each.shape[:-2]] for each in (left, right))
    lead = [tirx.IntImm("int64", extent) for extent in np.broadcast_shapes(*map(tuple, outer))]
    shape = [*lead, left.shape[-2], right.shape[-2]]

    def element(*indices: Any) -> Any:
        *outer, row, column = indices
        a = left(*_outer_indices(left, outer), row, k).astype(dtype)
        b = right(*_outer_indices(right, outer), column, k).astype(dtype)
        return te.sum(a * b, axis=k)

    return te.compute(shape, element, name="NT_matmul")


def _outer_indices(tensor: te.Tensor, outer: Sequence[Any]) -> list[Any]:
    """The indices of a tensor's outer axes; 0 along those that are broadcast."""
    extents = [int(extent) for extent in tensor.shape[:-2]]
    inner = outer[len(outer) - len(extents) :]
    return [0 if extent == 1 else index for extent, index in zip(extents, inner, strict=True)]


# Splits of a tensor as slices of it, each of which can be in a program of its own.


def slice_splits(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with a slice for each part of a split."""
    return relax.transform.DeadCodeElimination()(Rewriter(mod).run(_splits_rule))


def _splits_rule(rewriter: Rewriter, value: Any) -> Any:
    if operator_name(value) != "split":
        return None
    (tensor,) = value.args
    axis = int(value.attrs.axis) % len(tensor.ty.shape)
    parts, begin = [], 0
    for field in rewriter.builder.normalize(value).ty.fields:
        end = begin + int(field.shape[axis])
        part = relax.op.strided_slice(tensor, [axis], [begin], [end], assume_inbound=True)
        parts.append(rewriter.emit(part))
        begin = end
    return relax.Tuple(parts)
