"""Logarithms, and functions that are made of them."""

from __future__ import annotations

import math

from tvm import tirx

from felix.builder.elementary import terms
from felix.builder.elementary.exponentials import LN2_HIGH, LN2_LOW
from felix.builder.elementary.terms import MANTISSA_BITS, Lets, Value, f32, f64, i32

# log(x) = n ln 2 + log(1 + f),  x = 2^n (1 + f),  1 + f in [sqrt(1/2), sqrt(2))

_SQRT_HALF_BITS = 0x3F3504F3
#: Of f^3 and higher powers of f in log(1 + f).
_LOG = terms.coefficients(
    """
    0.333333126 -0.250000096 0.200021187 -0.166679959 0.142195518 -0.12405588 0.118881654
    -0.116756595 0.0674664289
    """
)
_LEAST_NORMAL = 2.0**-126


def log(lets: Lets, given: Value) -> Value:
    """Below 1 ulp."""
    n, f = _parts(lets, given)
    return _with_ends(given, _sum(lets, n, f), 0.0)


def log2(lets: Lets, given: Value) -> Value:
    """Below 1 ulp; exact for powers of 2."""
    return _with_ends(given, _to_base(lets, given, 2.0), 0.0)


def log10(lets: Lets, given: Value) -> Value:
    """Below 1 ulp; exact for powers of 10."""
    return _with_ends(given, _to_base(lets, given, 10.0), 0.0)


def _to_base(lets: Lets, given: Value, base: float) -> Value:
    """Added up in float64, so that the factor costs no digits."""
    n, f = _parts(lets, given)
    natural = f.astype("float64") + _low(lets, f, f32(0.0)).astype("float64")
    value = natural * f64(1.0 / math.log(base)) + n.astype("float64") * f64(math.log(2.0, base))
    return value.astype("float32")


def _with_ends(given: Value, value: Value, pole: float) -> Value:
    """A logarithm, and what it is from its pole down, of infinity and of NaN."""
    value = tirx.Select(given < f32(math.inf), value, given)
    value = tirx.Select(given > f32(pole), value, f32(math.nan))
    value = tirx.Select(given == f32(pole), f32(-math.inf), value)
    return tirx.Select(tirx.isnan(given), given, value)


def _parts(lets: Lets, given: Value) -> tuple[Value, Value]:
    """n and f of a positive number."""
    is_small = given < f32(_LEAST_NORMAL)
    x = tirx.Select(is_small, given * f32(2.0**25), given)
    bits = lets(tirx.reinterpret("int32", x))
    power = lets((bits - i32(_SQRT_HALF_BITS)) >> MANTISSA_BITS)
    f = lets(tirx.reinterpret("float32", bits - (power << MANTISSA_BITS)) - f32(1.0))
    return lets(tirx.Select(is_small, power - 25, power).astype("float32")), f


def _sum(lets: Lets, n: Value, f: Value) -> Value:
    """n ln 2 + log(1 + f)."""
    return lets(f + _low(lets, f, n * f32(LN2_LOW))) + n * f32(LN2_HIGH)


def _low(lets: Lets, f: Value, further: Value) -> Value:
    """log(1 + f) - f, and what is small besides."""
    square = lets(f * f)
    low = lets(f * square * terms.polynomial(_LOG, f) + further)
    return lets(low - square * f32(0.5))


# log(1 + x): n is that of 1 + x, and f = 2^-n x + (2^-n - 1), which is x near 0.


def log1p(lets: Lets, given: Value) -> Value:
    """2 ulp."""
    value = _with_ends(given, _sum(lets, *_moved_parts(lets, given)), -1.0)
    return tirx.Select(given == f32(0.0), given, value)


def _moved_parts(lets: Lets, x: Value) -> tuple[Value, Value]:
    """n and f of 1 + x, for x above -1."""
    bits = tirx.reinterpret("int32", x + f32(1.0))
    power = lets((bits - i32(_SQRT_HALF_BITS)) >> MANTISSA_BITS)
    moved = lets(power << MANTISSA_BITS)
    scaled = tirx.reinterpret("float32", tirx.reinterpret("int32", x) - moved)
    scale = lets(tirx.reinterpret("float32", tirx.max(i32(terms.ONE_BITS) - moved, i32(0))))
    return lets(power.astype("float32")), lets(scaled + lets(scale - f32(1.0)))


#: From here on asinh(x) and acosh(x) are log(1 + x) + ln 2; squares are floats below.
_LARGE = 2.0**30


def asinh(lets: Lets, given: Value) -> Value:
    """log(1 + |x| + x^2 / (1 + sqrt(1 + x^2))) with the sign of x: 3 ulp."""
    x = lets(tirx.abs(given))
    square = lets(x * x)
    root = tirx.sqrt(square + f32(1.0))
    value = _of_sum(lets, x, x + square / (root + f32(1.0)))
    return tirx.Select(x < f32(math.inf), terms.flipped(value, terms.sign(given)), given)


def acosh(lets: Lets, x: Value) -> Value:
    """log(1 + t + sqrt(t (x + 1))), t = x - 1: 3 ulp; NaN below 1."""
    t = lets(x - f32(1.0))
    value = _of_sum(lets, x, t + tirx.sqrt(t * (x + f32(1.0))))
    value = tirx.Select(x < f32(math.inf), value, x)
    return tirx.Select(x >= f32(1.0), value, f32(math.nan))


def _of_sum(lets: Lets, x: Value, rest: Value) -> Value:
    """log(1 + rest), where rest is 2 x for a large x."""
    is_large = x >= f32(_LARGE)
    n, f = _moved_parts(lets, lets(tirx.Select(is_large, x, rest)))
    return lets(_sum(lets, n + tirx.Select(is_large, f32(1.0), f32(0.0)), f))


def atanh(lets: Lets, given: Value) -> Value:
    """log(1 + 2 |x| / (1 - |x|)) / 2 with the sign of x: 3 ulp; NaN beyond 1."""
    x = lets(tirx.abs(given))
    parts = _moved_parts(lets, lets((x + x) / (f32(1.0) - x)))
    value = tirx.Select(x < f32(1.0), _sum(lets, *parts) * f32(0.5), f32(math.inf))
    value = lets(tirx.Select(x <= f32(1.0), value, f32(math.nan)))
    return terms.flipped(value, terms.sign(given))
