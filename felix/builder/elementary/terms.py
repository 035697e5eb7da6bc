"""What functions are written of: constants, polynomials, bits of floats, names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from felix.tir import grammar

Value = Any

f32, f64, i32, u32 = (
    functools.partial(tirx.const, dtype=dtype)
    for dtype in ("float32", "float64", "int32", "uint32")
)
#: Of float32: the exponent of 1, the bits below the exponent, those of 1.
BIAS, MANTISSA_BITS, ONE_BITS = 127, 23, 0x3F800000


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Bits of a type of floats: the exponent of 1, the bits below the exponent."""

    integer: str
    bias: int
    mantissa_bits: int


_LAYOUTS = {"float32": Layout("int32", BIAS, MANTISSA_BITS), "float64": Layout("int64", 1023, 52)}


def layout(x: Value) -> Layout:
    """How the bits of a float32 or float64 lie."""
    return _LAYOUTS[grammar.dtype(x)]


def numbers(x: Value) -> Callable[[float], Value]:
    """What makes constants of the type of x."""
    return functools.partial(tirx.const, dtype=grammar.dtype(x))


class Lets:
    """Names of what is computed once, however often it is used.

    Truth values have none: TVM fails where they are vectors.
    """

    def __init__(self) -> None:
        self._bound: list[tuple[tirx.Var, Value]] = []

    def __call__(self, value: Value) -> tirx.Var:
        """A name of a value."""
        self._bound.append((tirx.Var("value", grammar.dtype(value)), value))
        return self._bound[-1][0]

    def over(self, result: Value) -> Value:
        """The result with all names before it."""
        for variable, value in reversed(self._bound):
            result = tirx.Let(variable, value, result)
        return result


def u64(value: int) -> Value:
    """A constant of 64 bits."""
    if value < 1 << 63:
        return tirx.const(value, "uint64")
    return tirx.reinterpret("uint64", tirx.const(value - (1 << 64), "int64"))  # as TVM's scripts


def coefficients(text: str) -> tuple[float, ...]:
    """Numbers between blanks."""
    return tuple(map(float, text.split()))


def polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule, in the type of x."""
    number = numbers(x)
    result = number(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * x + number(coefficient)
    return result


def clamped(x: Value, least: float, most: float) -> Value:
    """The nearest to x of an interval."""
    number = numbers(x)
    return tirx.max(tirx.min(x, number(most)), number(least))


def power_of_2(n: Value, dtype: str = "float32") -> Value:
    """2^n of a whole n of as many bits as the type; 0 for the n below the least one."""
    layout = _LAYOUTS[dtype]
    return tirx.reinterpret(dtype, (n + layout.bias) << layout.mantissa_bits)


def sign(x: Value) -> Value:
    """The bit of a float's sign."""
    unsigned = f"u{layout(x).integer}"
    bit = u32(1 << 31) if unsigned == "uint32" else u64(1 << 63)
    return tirx.reinterpret(unsigned, x) & bit


def flipped(x: Value, sign: Value) -> Value:
    """A float, negated where the bit of a sign is."""
    bits = tirx.reinterpret(f"u{layout(x).integer}", x) ^ sign
    return tirx.reinterpret(grammar.dtype(x), bits)
