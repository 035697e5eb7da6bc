"""Functions of float32 by polynomials, so that a CPU computes a vector of them at a time.

LLVM has no vector code for them: it calls the C library's function for each element, which is most
of the time of a softmax or a GELU. Before a program is compiled for a CPU, each call is written
out. Errors, in units of the last place (ulp) over all float32, are beside each function. NaN stays
NaN, and infinities give what their limits are. Coefficients are fits of the least relative error
on the interval that is left after the reduction of the argument.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from felix.tir import grammar

Value = Any


def written_out(call: tvm.ir.Call) -> tvm.ir.Expr:
    """A call of one of `FUNCTIONS` on float32, or in float32 on float16; others stay."""
    function = FUNCTIONS.get(getattr(call.op, "name", ""))
    if function is None or (dtype := grammar.dtype(call)) not in ("float32", "float16"):
        return call
    lets = _Lets()
    operands = [lets(argument.astype("float32")) for argument in call.args]
    return lets.over(function(lets, *operands)).astype(dtype)


class _Lets:
    """Names of what is computed once, however often it is used."""

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


_f32, _f64, _i32 = (
    functools.partial(tirx.const, dtype=dtype) for dtype in ("float32", "float64", "int32")
)


def _u64(value: int) -> Value:
    if value < 1 << 63:
        return tirx.const(value, "uint64")
    return tirx.reinterpret("uint64", tirx.const(value - (1 << 64), "int64"))  # as TVM's scripts


def _coefficients(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule, in the type of x."""
    dtype = grammar.dtype(x)
    result = tirx.const(coefficients[-1], dtype)
    for coefficient in coefficients[-2::-1]:
        result = result * x + tirx.const(coefficient, dtype)
    return result


def _clamped(x: Value, least: float, most: float) -> Value:
    dtype = grammar.dtype(x)
    return tirx.max(tirx.min(x, tirx.const(most, dtype)), tirx.const(least, dtype))


# exp(x) = 2^n exp(r),  n = floor(x / ln 2 + 1/2),  r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2]

#: ln 2 as a short number and what is left of it, so that r is exact to the last bits.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
#: Cephes' `expf`: of r^2 and higher powers of r.
_EXP = _coefficients(
    """
    0.500000012 0.166666655 0.0416657959 0.00833345191 0.00139819995 0.000198756915
    """
)
#: Below and above, the result is 0 and infinite.
_EXP_LEAST, _EXP_MOST = -104.0, 89.0
_BIAS, _MANTISSA_BITS = 127, 23


def _exp(lets: _Lets, given: Value) -> Value:
    """Below 1 ulp; what is too small for float32 is 0."""
    x = lets(_clamped(given, _EXP_LEAST, _EXP_MOST))
    n = lets(tirx.floor(x * _f32(1.44269504088896341) + _f32(0.5)))
    r = lets((x - n * _f32(_LN2_HIGH)) - n * _f32(_LN2_LOW))
    power = lets(n.astype("int32"))
    half = power >> 1  # 2^n may be no float32 where exp(x) is one
    value = (_polynomial(_EXP, r) * (r * r) + r + _f32(1.0)) * _power_of_2(half)
    return tirx.Select(tirx.isnan(given), given, value * _power_of_2(power - half))


def _power_of_2(n: Value) -> Value:
    return tirx.reinterpret("float32", (n + _BIAS) << _MANTISSA_BITS)


def _sigmoid(lets: _Lets, x: Value) -> Value:
    return _f32(1.0) / (_f32(1.0) + _exp(lets, lets(-x)))


# x P(x^2) / Q(x^2) up to where the function is 1 in float32.

_ERF_ONE = 3.92
_ERF_P = _coefficients(
    """
    1.12837915 0.190397004 0.0527472908 0.00376516371 0.000284864834 2.05005894e-06
    """
)
_ERF_Q = _coefficients("1 0.502067695 0.114105038 0.0149683119 0.00116241138 3.80904851e-05")
_TANH_ONE = 9.02
_TANH_P = _coefficients("0.999999979 0.133796721 0.0034939794 2.05825582e-05 1.33177902e-08")
_TANH_Q = _coefficients("1 0.467129874 0.0258708651 0.000328300177 7.76149414e-07")


def _odd(p: Sequence[float], q: Sequence[float], one: float) -> Callable[[_Lets, Value], Value]:
    """erf: 6 ulp; tanh: 7 ulp."""

    def function(lets: _Lets, given: Value) -> Value:
        x = lets(_clamped(given, -one, one))
        square = lets(x * x)
        value = x * _polynomial(p, square) / _polynomial(q, square)
        return tirx.Select(tirx.isnan(given), given, _clamped(value, -1.0, 1.0))

    return function


# log(x) = e ln 2 + log(1 + f),  x = 2^e (1 + f),  1 + f in [sqrt(1/2), sqrt(2))

_SQRT_HALF_BITS = 0x3F3504F3
#: Of f^3 and higher powers of f in log(1 + f).
_LOG = _coefficients(
    """
    0.333333126 -0.250000096 0.200021187 -0.166679959 0.142195518 -0.12405588 0.118881654
    -0.116756595 0.0674664289
    """
)
_LEAST_NORMAL = 2.0**-126


def _log(lets: _Lets, given: Value) -> Value:
    """Below 1 ulp."""
    is_small = given < _f32(_LEAST_NORMAL)
    x = tirx.Select(is_small, given * _f32(2.0**25), given)
    bits = lets(tirx.reinterpret("int32", x))
    power = lets((bits - _i32(_SQRT_HALF_BITS)) >> _MANTISSA_BITS)
    f = lets(tirx.reinterpret("float32", bits - (power << _MANTISSA_BITS)) - _f32(1.0))
    n = lets(tirx.Select(is_small, power - 25, power).astype("float32"))
    square = lets(f * f)
    low = lets(f * square * _polynomial(_LOG, f) + n * _f32(_LN2_LOW))
    low = lets(low - square * _f32(0.5))
    value = lets(f + low) + n * _f32(_LN2_HIGH)
    value = tirx.Select(given < _f32(math.inf), value, given)
    value = tirx.Select(given > _f32(0.0), value, _f32(math.nan))
    value = tirx.Select(given == _f32(0.0), _f32(-math.inf), value)
    return tirx.Select(tirx.isnan(given), given, value)


# sin and cos of x = k pi/2 + r, r in [-pi/4, pi/4].
#
# Up to 2^25 r is x - k pi/2 in float64. Beyond, x = m 2^e with a whole m of 24 bits, and bits of
# 2/pi that are worth 4 quarters or more count whole turns: the product of m and the 64 bits after
# them, without what overflows, is the place in the turn (Payne and Hanek, 1983).

_FAR = 2.0**25
#: 2/pi = 0.10100010111110011..., its first 192 bits.
_TWO_OVER_PI = (0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041)
_SIN = _coefficients("-0.166666546 0.00833216075 -0.000195152816")
_COS = _coefficients("0.0416666457 -0.00138873162 2.44331553e-05")


def _turned(quarters: int) -> Callable[[_Lets, Value], Value]:
    """sin of x and some quarters of a turn; absolute error 1e-7."""

    def function(lets: _Lets, given: Value) -> Value:
        near_quarter, near_rest = _near(lets, given)
        far_quarter, far_rest = _far(lets, given)
        is_far = tirx.abs(given) >= _f32(_FAR)
        quarter = lets(tirx.Select(is_far, far_quarter, near_quarter) + quarters)
        r = lets(tirx.Select(is_far, far_rest, near_rest).astype("float32"))
        square = lets(r * r)
        sine = r * (_f32(1.0) + square * _polynomial(_SIN, square))
        cosine = _f32(1.0) - square * _f32(0.5) + square * square * _polynomial(_COS, square)
        value = lets(tirx.Select((quarter & 1) == 0, sine, cosine))
        value = tirx.Select((quarter & 2) == 0, value, -value)
        is_number = tirx.abs(given) < _f32(math.inf)
        return tirx.Select(is_number, value, _f32(math.nan))

    return function


def _near(lets: _Lets, given: Value) -> tuple[Value, Value]:
    """Quarters and what is left of an argument below `_FAR`."""
    x = _clamped(given, -_FAR, _FAR).astype("float64")
    k = lets(tirx.floor(x * _f64(2.0 / math.pi) + _f64(0.5)))
    return k.astype("int32"), lets(x - k * _f64(math.pi / 2))


def _far(lets: _Lets, given: Value) -> tuple[Value, Value]:
    """Quarters and what is left of an argument of at least `_FAR`."""
    bits = lets(tirx.reinterpret("uint32", given))
    power = ((bits >> 23) & 255).astype("int32") - (_BIAS + _MANTISSA_BITS)
    skipped = lets(tirx.max(power - 2, _i32(0)))
    mantissa = ((bits & 0x7FFFFF) | 0x800000).astype("uint64")
    first, second, third = map(_u64, _TWO_OVER_PI)
    is_first = skipped < 64
    high = lets(tirx.Select(is_first, first, second))
    low = lets(tirx.Select(is_first, second, third))
    shift = lets((skipped & 63).astype("uint64"))
    window = (high << shift) | ((low >> _u64(1)) >> (_u64(63) - shift))
    place = lets(mantissa * window)
    rounded = lets((place + _u64(1 << 61)) >> _u64(62))
    left = tirx.reinterpret("int64", place - (rounded << _u64(62))).astype("float64")
    rest = left * _f64(math.pi / 2 * 2.0**-62)
    is_negative = given < _f32(0.0)
    quarter = rounded.astype("int32")
    return tirx.Select(is_negative, -quarter, quarter), tirx.Select(is_negative, -rest, rest)


# x^y = 2^(y log2 |x|) in float64, with the sign of x where y is odd.

#: log2 m = s P(s^2),  s = (m - 1) / (m + 1),  m in [sqrt(1/2), sqrt(2))
_LOG2 = _coefficients(
    """
    2.885390081790086 0.9617966733297136 0.5770835879238534 0.4116725179674644
    0.34073415358945264
    """
)
_SQRT_HALF_BITS_64 = 0x3FE6A09E667F3BCD
_EXP2 = _coefficients(
    """
    0.9999999999616813 0.693147180728451 0.24022651198164036 0.055504103534365266
    0.009618027252782213 0.0013333922570701907 0.00015469291430493352 1.520192043204336e-5
    """
)


def _pow(lets: _Lets, x: Value, y: Value) -> Value:
    """Below 1 ulp; 1 where x is 1 or y is 0, NaN where x is negative and y no whole number."""
    size = lets(tirx.abs(x))
    exponent = _clamped(y, -(2.0**100), 2.0**100).astype("float64")
    z = lets(_clamped(exponent * _log2(lets, size), -200.0, 200.0))
    n = lets(tirx.floor(z + _f64(0.5)))
    scale = tirx.reinterpret("float64", (n.astype("int64") + 1023) << 52)
    value = lets((_polynomial(_EXP2, lets(z - n)) * scale).astype("float32"))
    is_whole = tirx.floor(y) == y
    is_odd = tirx.And(is_whole, tirx.floor(y * _f32(0.5)) * _f32(2.0) != y)
    has_sign = tirx.reinterpret("int32", x) < _i32(0)
    value = lets(tirx.Select(tirx.And(has_sign, is_odd), -value, value))
    is_real = tirx.Or(tirx.Or(x >= _f32(0.0), is_whole), size == _f32(math.inf))
    is_nan = tirx.Or(tirx.Or(tirx.isnan(x), tirx.isnan(y)), tirx.Not(is_real))
    is_one = tirx.Or(x == _f32(1.0), y == _f32(0.0))
    return tirx.Select(is_one, _f32(1.0), tirx.Select(is_nan, _f32(math.nan), value))


def _log2(lets: _Lets, size: Value) -> Value:
    """log2 of a float32 that is not negative, in float64; of 0 and infinity +-1e300."""
    bits = lets(tirx.reinterpret("int64", size.astype("float64")))
    power = lets((bits - tirx.const(_SQRT_HALF_BITS_64, "int64")) >> 52)
    m = lets(tirx.reinterpret("float64", bits - (power << 52)))
    s = lets((m - _f64(1.0)) / (m + _f64(1.0)))
    value = s * _polynomial(_LOG2, lets(s * s)) + power.astype("float64")
    value = tirx.Select(size < _f32(math.inf), value, _f64(1e300))
    return tirx.Select(size > _f32(0.0), value, _f64(-1e300))


#: name of an operator of TVM -> what writes it out
FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "tirx.exp": _exp,
    "tirx.sigmoid": _sigmoid,
    "tirx.erf": _odd(_ERF_P, _ERF_Q, _ERF_ONE),
    "tirx.tanh": _odd(_TANH_P, _TANH_Q, _TANH_ONE),
    "tirx.log": _log,
    "tirx.sin": _turned(0),
    "tirx.cos": _turned(1),
    "tirx.pow": _pow,
}
