"""Whether a program's products of float32 may be computed in TF32.

TF32 has the exponents of float32 and 10 bits of the mantissa: tensor cores drop the other 13 of
each factor and sum in float32. Nobody gets it unasked: a program that may use it has an attribute,
which is a part of its structure, so keys of tasks and sketches, records and stored results tell it
from the program that may not.
"""

from __future__ import annotations

from tvm import tirx

_ATTRIBUTE = "felix.allow_tf32"
#: Distance from 1 to the next larger value.
EPS = 2.0**-10


def allowed(func: tirx.PrimFunc) -> bool:
    """Whether a function has the attribute."""
    return bool(func.attrs and func.attrs.get(_ATTRIBUTE))


def allow(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the attribute."""
    return func.with_attr(_ATTRIBUTE, True)
