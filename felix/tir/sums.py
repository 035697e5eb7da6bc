"""Sums of 16-bit floats in 16 bits, which no program of a model may have.

A float16 sum of ones stops at 2,048. Imports give operators that sum float32 to sum in
(`felix.frontend.numerics.widened_sum`); this finds what they have missed.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from felix.tir import grammar, rounding


def narrow(func: tirx.PrimFunc) -> str | None:
    """The name of a buffer of 16-bit floats in which a block sums or multiplies terms; None of a
    program without one."""
    for block in grammar.nodes(func.body, s_tir.SBlock):
        if block.init is None:
            continue
        for store in grammar.nodes(block.body, tirx.BufferStore):
            if grammar.dtype(store.value) in rounding.HALF and _accumulates(store):
                return str(store.buffer.name)
    return None


def _accumulates(store: Any) -> bool:
    """Whether a store adds to the buffer's element, or multiplies it; casts do not matter."""
    value = store.value
    while isinstance(value, tirx.Cast):
        value = value.value
    if not isinstance(value, tirx.Add | tirx.Mul):
        return False
    return any(_loads(each, store.buffer) for each in (value.a, value.b))


def _loads(value: Any, buffer: Any) -> bool:
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, tvm.ir.TensorLoad) and bool(value.source.same_as(buffer))
