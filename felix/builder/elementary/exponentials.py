"""Exponentials, and functions that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx

from felix.builder.elementary import terms
from felix.builder.elementary.terms import Lets, Value, f32
from felix.tir import grammar

# exp(x) = 2^n exp(r),  n = floor(x / ln 2 + 1/2),  r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2]

#: ln 2 as a short number and what is left of it, so that r is exact to the last bits.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
#: The same of log10 2.
_LOG10_2_HIGH, _LOG10_2_LOW = 0.301025390625, 4.60503898e-6
#: Cephes' `expf`: of r^2 and higher powers of r.
_EXP = terms.coefficients(
    """
    0.500000012 0.166666655 0.0416657959 0.00833345191 0.00139819995 0.000198756915
    """
)
#: Below and above, the results are 0 and infinite.
_EXP_ENDS, _EXP2_ENDS, _EXP10_ENDS = (-104.0, 89.0), (-151.0, 129.0), (-46.0, 39.0)


def exp(lets: Lets, given: Value) -> Value:
    """Below 1 ulp; what is too small for float32 is 0, as in all exponentials."""
    x = lets(terms.clamped(given, *_EXP_ENDS))
    n = _whole(lets, x, 1.0 / math.log(2.0))
    return _scaled(lets, given, n, lets(_rest(x, n, LN2_HIGH, LN2_LOW)))


def exp2(lets: Lets, given: Value) -> Value:
    """2 ulp."""
    x = lets(terms.clamped(given, *_EXP2_ENDS))
    n = _whole(lets, x, 1.0)
    return _scaled(lets, given, n, lets((x - n) * f32(math.log(2.0))))


def exp10(lets: Lets, given: Value) -> Value:
    """2 ulp."""
    x = lets(terms.clamped(given, *_EXP10_ENDS))
    n = _whole(lets, x, math.log2(10.0))
    r = _rest(x, n, _LOG10_2_HIGH, _LOG10_2_LOW) * f32(math.log(10.0))
    return _scaled(lets, given, n, lets(r))


def _whole(lets: Lets, x: Value, scale: float) -> Value:
    """The whole number nearest to x times a scale."""
    return lets(tirx.floor(x * f32(scale) + f32(0.5)))


def _rest(x: Value, n: Value, high: float, low: float) -> Value:
    return (x - n * f32(high)) - n * f32(low)


def _scaled(lets: Lets, given: Value, n: Value, r: Value) -> Value:
    """2^n exp(r), or NaN where that is given."""
    power = lets(n.astype("int32"))
    half = power >> 1  # 2^n may be no float32 where the result is one
    value = (terms.polynomial(_EXP, r) * (r * r) + r + f32(1.0)) * terms.power_of_2(half)
    return tirx.Select(tirx.isnan(given), given, value * terms.power_of_2(power - half))


def sigmoid(lets: Lets, x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return f32(1.0) / (f32(1.0) + exp(lets, lets(-x)))


# sinh(x) = u cosh(r) + v sinh(r)  and  cosh(x) = v cosh(r) + u sinh(r)  with x = n ln 2 + r >= 0,
# u = 2^(n-1) - 2^(-n-1),  v = 2^(n-1) + 2^(-n-1).  Near 0 u is 0, and sinh loses nothing.

#: By type: of r^3, r^5, ... in sinh(r), for r up to 0.7.
_SINH = {
    "float32": terms.coefficients("0.166666731 0.00833255146 0.000201092174"),
    "float64": terms.coefficients(
        """
        0.16666666666666657 0.008333333333336987 0.00019841269836476215 2.7557322111688816e-06
        2.5051229956848794e-08 1.6190317739096342e-10
        """
    ),
}
#: Of r^2, r^4, ... in cosh(r).
_COSH = {
    "float32": terms.coefficients("0.5 0.0416666754 0.0013887987 2.50843204e-05"),
    "float64": terms.coefficients(
        """
        0.5 0.04166666666666665 0.0013888888888893432 2.4801587296845615e-05
        2.7557321647273453e-07 2.087610544938389e-09 1.155928774279436e-11
        """
    ),
}
#: ln 2 in two parts.
_LN2 = {"float32": (LN2_HIGH, LN2_LOW), "float64": (0.693147180559663, 2.8235290563031577e-13)}
#: Both are infinite at it.
_INFINITE = {"float32": 90.0, "float64": 711.0}


def sinh(lets: Lets, given: Value) -> Value:
    """2 ulp, 3 in float64."""
    (u, v), (c, s) = _halves(lets, given)
    value = terms.flipped(u + (u * c + v * s), terms.sign(given))
    return tirx.Select(tirx.isnan(given), given, value)


def cosh(lets: Lets, given: Value) -> Value:
    """3 ulp."""
    (u, v), (c, s) = _halves(lets, given)
    return tirx.Select(tirx.isnan(given), given, v + (v * c + u * s))


def _halves(lets: Lets, given: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """u and v, cosh(r) - 1 and sinh(r), of |x|; in float32 or float64."""
    dtype, layout, number = grammar.dtype(given), terms.layout(given), terms.numbers(given)
    x = lets(tirx.min(tirx.abs(given), number(_INFINITE[dtype])))
    whole = tirx.floor(x * number(1.0 / math.log(2.0)) + number(0.5))
    n = lets(tirx.min(whole, number(layout.bias + 1)))  # 2^(n-1) is a float
    high, low = map(number, _LN2[dtype])
    r = lets((x - n * high) - n * low)
    power = lets(n.astype(layout.integer))
    large = lets(terms.power_of_2(power - 1, dtype))
    least = tirx.const(-layout.bias, layout.integer)
    small = lets(terms.power_of_2(tirx.max(-1 - power, least), dtype))
    square = lets(r * r)
    c = lets(square * terms.polynomial(_COSH[dtype], square))
    s = lets(r + r * square * terms.polynomial(_SINH[dtype], square))
    return (lets(large - small), lets(large + small)), (c, s)


# x P(x^2) / Q(x^2) up to where the function is 1 in float32.

_ERF_ONE = 3.92
_ERF_P = terms.coefficients(
    """
    1.12837915 0.190397004 0.0527472908 0.00376516371 0.000284864834 2.05005894e-06
    """
)
_ERF_Q = terms.coefficients("1 0.502067695 0.114105038 0.0149683119 0.00116241138 3.80904851e-05")
_TANH_ONE = 9.02
_TANH_P = terms.coefficients("0.999999979 0.133796721 0.0034939794 2.05825582e-05 1.33177902e-08")
_TANH_Q = terms.coefficients("1 0.467129874 0.0258708651 0.000328300177 7.76149414e-07")


def _odd(p: Sequence[float], q: Sequence[float], one: float) -> Callable[[Lets, Value], Value]:
    def function(lets: Lets, given: Value) -> Value:
        x = lets(terms.clamped(given, -one, one))
        square = lets(x * x)
        value = x * terms.polynomial(p, square) / terms.polynomial(q, square)
        return tirx.Select(tirx.isnan(given), given, terms.clamped(value, -1.0, 1.0))

    return function


#: 6 ulp.
erf = _odd(_ERF_P, _ERF_Q, _ERF_ONE)
#: 7 ulp.
tanh = _odd(_TANH_P, _TANH_Q, _TANH_ONE)
