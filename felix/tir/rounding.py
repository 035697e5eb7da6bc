"""A value rounded to float16 or bfloat16 so that nothing drops the rounding.

A cast to 16 bits and back is dropped by TVM's legalization of bfloat16, and by templates, which
compute in float32 up to the store. A cast that the model itself has is written so that it stays:

    float16     the bits of Cast(float16, x) as an integer, and back
    bfloat16    the upper 16 of the 32 bits of x, to the nearest, ties to even; NaN stays NaN
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

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
    if dtype == "float16" and (bits := _reinterpreted(expr)) is not None:
        narrow: Any = _reinterpreted(bits)
        return narrow.value if type(narrow).__name__ == "Cast" else None
    if dtype == "bfloat16" and type(expr).__name__ == "Cast":
        kept = expr.value
        if type(kept).__name__ != "Select" or _reinterpreted(kept.false_value) is None:
            return None
        return kept.true_value
    return None


def _reinterpreted(expr: Any) -> Any | None:
    """The number whose bits an expression is; None of another one."""
    is_call = type(expr).__name__ == "Call" and getattr(expr.op, "name", "") == grammar.REINTERPRET
    return expr.args[0] if is_call else None
