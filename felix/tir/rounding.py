"""16-bit floats: a value rounded to one so that nothing drops the rounding; sums in 16 bits.

A cast to 16 bits and back is dropped by TVM's legalization of bfloat16, and by templates, which
compute in float32 up to the store. A cast that the model itself has is written so that it stays:

    float16     the bits of Cast(float16, x) as an integer, and back
    bfloat16    the upper 16 of the 32 bits of x, to the nearest, ties to even; NaN stays NaN

No program of a model may sum in 16 bits: a float16 sum of ones stops at 2,048. Imports give
operators that sum float32 to sum in (`felix.frontend.numerics.widened_sum`); `narrow_sum` finds
what they have missed.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from felix.tir import grammar

#: Floats that are computed and summed in float32, and of which roundings are kept.
HALF = ("float16", "bfloat16")
_BITS = "uint16"


def accumulator(dtype: str) -> str:
    """The type in which floats of a type are summed."""
    return "float32" if dtype in HALF else dtype


def rounded(x: Any, dtype: str) -> Any:
    """An expression of a number as one of a type of `HALF`."""
    if dtype == "float16":
        return tirx.reinterpret(dtype, tirx.reinterpret(_BITS, x.astype(dtype)))
    wide = x.astype("float32")
    bits = tirx.reinterpret("int32", wide)
    is_odd = (bits >> 16) & tirx.const(1, "int32")
    upper = (bits + tirx.const(0x7FFF, "int32") + is_odd) & tirx.const(-0x10000, "int32")
    kept = tirx.Select(tirx.isnan(wide), wide, tirx.reinterpret("float32", upper))
    return tirx.Cast(dtype, kept)


def source(expr: Any) -> Any | None:
    """What an expression that `rounded` made rounds; None of another one."""
    dtype = grammar.dtype(expr)
    if dtype == "float16" and (bits := grammar.reinterpreted(expr)) is not None:
        narrow: Any = grammar.reinterpreted(bits)
        return narrow.value if type(narrow).__name__ == "Cast" else None
    if dtype == "bfloat16" and type(expr).__name__ == "Cast":
        kept = expr.value
        if type(kept).__name__ != "Select" or grammar.reinterpreted(kept.false_value) is None:
            return None
        return kept.true_value
    return None


def narrow_sum(func: tirx.PrimFunc) -> str | None:
    """The name of a buffer of 16-bit floats in which a block sums or multiplies terms; None of a
    program without one."""
    for block in grammar.nodes(func.body, s_tir.SBlock):
        if block.init is None:
            continue
        for store in grammar.nodes(block.body, tirx.BufferStore):
            if grammar.dtype(store.value) in HALF and _accumulates(store):
                return str(store.buffer.name)
    return None


def _accumulates(store: Any) -> bool:
    """Whether a store adds to the buffer's element, or multiplies it; casts do not matter."""
    value = _uncast(store.value)
    if not isinstance(value, tirx.Add | tirx.Mul):
        return False
    terms = (_uncast(value.a), _uncast(value.b))
    return any(grammar.is_load(each) and each.source.same_as(store.buffer) for each in terms)


def _uncast(value: Any) -> Any:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value
