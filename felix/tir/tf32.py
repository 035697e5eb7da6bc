"""Whether a program's products of float32 may be computed in TF32.

TF32 has the exponents of float32 and 10 bits of the mantissa: tensor cores drop the other 13 of
each factor and sum in float32. Nobody gets it unasked: a program that may use it has an attribute,
which is a part of its structure, so keys of tasks and sketches, records and stored results tell it
from the program that may not.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from felix.tir import grammar

_ATTRIBUTE = "felix.allow_tf32"
#: Distance from 1 to the next larger value.
EPS = 2.0**-10


def allowed(func: tirx.PrimFunc) -> bool:
    """Whether a function has the attribute."""
    return bool(func.attrs and func.attrs.get(_ATTRIBUTE))


def allow(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the attribute."""
    return func.with_attr(_ATTRIBUTE, True)


def matters(func: tirx.PrimFunc) -> bool:
    """Whether a function sums products of float32, which is all that TF32 changes."""
    return any(map(sums_float32, grammar.blocks(func.body)))


def sums_float32(block: Any) -> bool:
    """Whether a block sums products of float32, not of narrower factors that are widened."""
    is_sum = grammar.extent(block, grammar.REDUCE) > 1
    if not is_sum or type(block.body).__name__ != "BufferStore":
        return False
    is_product = any(
        type(value).__name__ == "Mul"
        and grammar.dtype(value) == "float32"
        and not (_is_widened(value.a) and _is_widened(value.b))
        for value in grammar.expressions(block.body.value)
    )
    return is_product and {str(region.source.dtype) for region in block.writes} == {"float32"}


def _is_widened(factor: Any) -> bool:
    """Whether a factor is a float of 16 bits or a byte, which TF32 holds exactly."""
    if type(factor).__name__ != "Cast":
        return False
    source = grammar.dtype(factor.value)
    return bool(grammar.bits(source) <= (16 if grammar.is_float(source) else 8))
