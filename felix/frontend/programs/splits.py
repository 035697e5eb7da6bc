"""Splits of a tensor as slices of it, each of which can be in a program of its own."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from felix.frontend.rewriting import Rewriter, operator_name


def slice_splits(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with a slice for each part of a split."""
    return relax.transform.DeadCodeElimination()(Rewriter(mod).run(_rule))


def _rule(rewriter: Rewriter, value: Any) -> Any:
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
