"""x^y = 2^(y log2 |x|) in float64, with the sign of x where y is odd."""

from __future__ import annotations

import math

from tvm import tirx

from felix.builder.elementary import terms
from felix.builder.elementary.terms import Lets, Value, f32, f64, i32

#: log2 m = s P(s^2),  s = (m - 1) / (m + 1),  m in [sqrt(1/2), sqrt(2))
_LOG2 = terms.coefficients(
    """
    2.885390081790086 0.9617966733297136 0.5770835879238534 0.4116725179674644
    0.34073415358945264
    """
)
_SQRT_HALF_BITS_64 = 0x3FE6A09E667F3BCD
_EXP2 = terms.coefficients(
    """
    0.9999999999616813 0.693147180728451 0.24022651198164036 0.055504103534365266
    0.009618027252782213 0.0013333922570701907 0.00015469291430493352 1.520192043204336e-5
    """
)


def power(lets: Lets, x: Value, y: Value) -> Value:
    """Below 1 ulp; 1 where x is 1 or y is 0, NaN where x is negative and y no whole number."""
    size = lets(tirx.abs(x))
    exponent = terms.clamped(y, -(2.0**100), 2.0**100).astype("float64")
    z = lets(terms.clamped(exponent * _log2(lets, size), -200.0, 200.0))
    n = lets(tirx.floor(z + f64(0.5)))
    scale = tirx.reinterpret("float64", (n.astype("int64") + 1023) << 52)
    value = lets((terms.polynomial(_EXP2, lets(z - n)) * scale).astype("float32"))
    is_whole = tirx.floor(y) == y
    is_odd = tirx.And(is_whole, tirx.floor(y * f32(0.5)) * f32(2.0) != y)
    has_sign = tirx.reinterpret("int32", x) < i32(0)
    value = lets(tirx.Select(tirx.And(has_sign, is_odd), -value, value))
    is_real = tirx.Or(tirx.Or(x >= f32(0.0), is_whole), size == f32(math.inf))
    is_nan = tirx.Or(tirx.Or(tirx.isnan(x), tirx.isnan(y)), tirx.Not(is_real))
    is_one = tirx.Or(x == f32(1.0), y == f32(0.0))
    return tirx.Select(is_one, f32(1.0), tirx.Select(is_nan, f32(math.nan), value))


def _log2(lets: Lets, size: Value) -> Value:
    """log2 of a float32 that is not negative, in float64; of 0 and infinity +-1e300."""
    bits = lets(tirx.reinterpret("int64", size.astype("float64")))
    power = lets((bits - tirx.const(_SQRT_HALF_BITS_64, "int64")) >> 52)
    m = lets(tirx.reinterpret("float64", bits - (power << 52)))
    s = lets((m - f64(1.0)) / (m + f64(1.0)))
    value = s * terms.polynomial(_LOG2, lets(s * s)) + power.astype("float64")
    value = tirx.Select(size < f32(math.inf), value, f64(1e300))
    return tirx.Select(size > f32(0.0), value, f64(-1e300))
