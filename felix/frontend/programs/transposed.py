"""Matrix products with a transposed right operand, read as it lies.

a @ permute_dims(b) of the last two axes, as linear layers and attention write it, becomes one
program out[..., m, n] = sum_k a[..., m, k] * b[..., n, k].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te

from felix.frontend.rewriting import Rewriter, operator_name
from felix.frontend.torch_calls import annotation


def fuse_transposes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with such products in place of transposition and product."""
    return relax.transform.DeadCodeElimination()(Rewriter(mod).run(_rule))


def _rule(rewriter: Rewriter, value: Any) -> Any:
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
        primfunc_attrs=annotation.attributes("matmul_transposed", 2, dtype),
    )


def _swaps_last_two(call: Any) -> bool:
    rank = len(call.args[0].ty.shape)
    axes = list(range(rank))[::-1] if call.attrs.axes is None else list(call.attrs.axes)
    return [int(axis) % rank for axis in axes] == [*range(rank - 2), rank - 1, rank - 2]


def _product(left: te.Tensor, right: te.Tensor, dtype: str) -> te.Tensor:
    k = te.reduce_axis((0, left.shape[-1]), name="k")
    lead = _broadcast([int(e) for e in left.shape[:-2]], [int(e) for e in right.shape[:-2]])
    shape = [*lead, left.shape[-2], right.shape[-2]]

    def element(*indices: Any) -> Any:
        *outer, row, column = indices
        a = left(*_outer_indices(left, outer), row, k).astype(dtype)
        b = right(*_outer_indices(right, outer), column, k).astype(dtype)
        return te.sum(a * b, axis=k)

    return te.compute(shape, element, name="NT_matmul")


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[Any]:
    rank = max(len(left), len(right))
    padded = [[1] * (rank - len(extents)) + list(extents) for extents in (left, right)]
    return [tvm.tirx.IntImm("int64", max(pair)) for pair in zip(*padded, strict=True)]


def _outer_indices(tensor: te.Tensor, outer: Sequence[Any]) -> list[Any]:
    """The indices of a tensor's outer axes; 0 along those that are broadcast."""
    extents = [int(extent) for extent in tensor.shape[:-2]]
    inner = outer[len(outer) - len(extents) :]
    return [0 if extent == 1 else index for extent, index in zip(extents, inner, strict=True)]
