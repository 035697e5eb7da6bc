"""Functions of angles, and angles."""

from __future__ import annotations

import math

from tvm import tirx

from felix.builder.elementary import terms
from felix.builder.elementary.terms import Lets, Value, f32, f64, u64
from felix.tir import grammar

# sin, cos and tan of x = k pi/2 + r, r in [-pi/4, pi/4].
#
# Up to 2^25 r is x - k pi/2 in float64. Beyond, x = m 2^e with a whole m of 24 bits, and bits of
# 2/pi that are worth 4 quarters or more count whole turns: the product of m and the 96 bits after
# them, without what overflows, is the place in the turn (Payne and Hanek, 1983).

_FAR = 2.0**25
#: pi/2 as a number of 28 bits, which k times is exact, and what is left of it.
_QUARTER_HIGH, _QUARTER_LOW = 1.57079632580280303955078125, 9.920935796805404e-10
#: 2/pi = 0.10100010111110011..., its first 256 bits.
_TWO_OVER_PI = (0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561)
_SIN = terms.coefficients("-0.166666546 0.00833216075 -0.000195152816")
_COS = terms.coefficients("0.0416666457 -0.00138873162 2.44331553e-05")


def sin(lets: Lets, given: Value) -> Value:
    """2 ulp."""
    return _turned(lets, given, terms.sign(given), 0)


def cos(lets: Lets, given: Value) -> Value:
    """2 ulp."""
    return _turned(lets, given, terms.u32(0), 1)


def tan(lets: Lets, given: Value) -> Value:
    """4 ulp."""
    quarter, sine, cosine = _quarter(lets, given)
    is_even = (quarter & 1) == 0
    value = tirx.Select(is_even, sine, -cosine) / tirx.Select(is_even, cosine, sine)
    return _of_number(given, terms.flipped(value, terms.sign(given)))


def _turned(lets: Lets, given: Value, sign: Value, quarters: int) -> Value:
    """sin of |x| and some quarters of a turn, negative where a bit of the sign is."""
    quarter, sine, cosine = _quarter(lets, given)
    quarter = lets(quarter + quarters)
    value = tirx.Select((quarter & 1) == 0, sine, cosine)
    half = (quarter & 2).astype("uint32") << terms.u32(30)
    return _of_number(given, terms.flipped(value, sign ^ half))


def _of_number(given: Value, value: Value) -> Value:
    """NaN where infinity or NaN is given."""
    return tirx.Select(tirx.abs(given) < f32(math.inf), value, f32(math.nan))


def _quarter(lets: Lets, given: Value) -> tuple[Value, Value, Value]:
    """k up to whole turns, sin r, cos r, of |x|."""
    x = lets(tirx.abs(given))
    near_quarter, near_rest = _near(lets, x)
    far_quarter, far_rest = _far(lets, x)
    is_far = x >= f32(_FAR)
    quarter = lets(tirx.Select(is_far, far_quarter, near_quarter))
    r = lets(tirx.Select(is_far, far_rest, near_rest).astype("float32"))
    square = lets(r * r)
    sine = r + r * (square * terms.polynomial(_SIN, square))
    cosine = f32(1.0) + square * (square * terms.polynomial(_COS, square) - f32(0.5))
    return quarter, lets(sine), lets(cosine)


def _near(lets: Lets, size: Value) -> tuple[Value, Value]:
    """k and r of an argument below `_FAR`."""
    x = lets(tirx.min(size, f32(_FAR)).astype("float64"))
    k = lets(tirx.floor(x * f64(2.0 / math.pi) + f64(0.5)))
    rest = (x - k * f64(_QUARTER_HIGH)) - k * f64(_QUARTER_LOW)
    return k.astype("int32"), lets(rest)


def _far(lets: Lets, size: Value) -> tuple[Value, Value]:
    """k up to whole turns and r of an argument of at least `_FAR`."""
    bits = lets(tirx.reinterpret("int32", size))
    mantissa = lets(((bits & 0x7FFFFF) | 0x800000).astype("uint64"))
    window, next_bits = _window(lets, bits)
    place = lets(mantissa * window + ((mantissa * next_bits) >> u64(32)))
    quarter = ((place + u64(1 << 61)) >> u64(62)).astype("int32")
    rest = tirx.reinterpret("int64", place << u64(2)).astype("float64")
    return quarter, rest * f64(math.pi / 2 * 2.0**-64)


def _window(lets: Lets, bits: Value) -> tuple[Value, Value]:
    """64 and then 32 bits of 2/pi, behind those that count whole turns."""
    skipped = lets((bits >> 23) - (terms.BIAS + terms.MANTISSA_BITS + 2))
    first, second, third, fourth = map(u64, _TWO_OVER_PI)
    is_first = skipped < 64
    words = (first, second), (second, third), (third, fourth)
    high, low, lowest = (lets(tirx.Select(is_first, *pair)) for pair in words)
    shift = lets((skipped & 63).astype("uint64"))
    left = lets(u64(63) - shift)
    window = (high << shift) | ((low >> u64(1)) >> left)
    following = (low << shift) | ((lowest >> u64(1)) >> left)
    return window, following >> u64(32)


# Angles, in float32 or float64.

#: By type: pi in two parts.
_PI = {
    "float32": (3.14159274, -8.74227766e-08),
    "float64": (3.141592653589793, 1.2246467991473532e-16),
}


def _from_turn(quarters: int, angle: Value) -> Value:
    """What is left of so many quarters of a turn beside an angle."""
    number = terms.numbers(angle)
    high, low = (number(quarters / 2 * part) for part in _PI[grammar.dtype(angle)])
    return high - (angle - low)


# asin(x) = s + s^3 P(s^2) with s = |x| up to 1/2, beyond it pi/2 - 2 asin(s), s^2 = (1 - |x|) / 2.

_ASIN = {
    "float32": terms.coefficients(
        "0.166667521 0.0749530941 0.0454691537 0.0241847429 0.0421583876"
    ),
    "float64": terms.coefficients(
        """
        0.1666666666666676 0.07499999999970865 0.04464285717456306 0.030381942709735713
        0.022372214940203822 0.017351612775093145 0.013980812021220455 0.011398980900373286
        0.010779852953525853 0.003708051138275378 0.02170296114711936 -0.02099181664706663
        0.0326234295111557
        """
    ),
}


def asin(lets: Lets, given: Value) -> Value:
    """3 ulp; NaN beyond 1."""
    is_large, angle = _half_angle(lets, given)
    angle = tirx.Select(is_large, _from_turn(1, angle + angle), angle)
    return terms.flipped(angle, terms.sign(given))


def acos(lets: Lets, given: Value) -> Value:
    """2 ulp; NaN beyond 1."""
    is_large, angle = _half_angle(lets, given)
    is_negative = given < terms.numbers(given)(0.0)
    twice = lets(angle + angle)
    large = tirx.Select(is_negative, _from_turn(2, twice), twice)
    small = _from_turn(1, tirx.Select(is_negative, -angle, angle))
    return tirx.Select(is_large, large, small)


def _half_angle(lets: Lets, given: Value) -> tuple[Value, Value]:
    """Whether |x| is above 1/2; asin(s)."""
    half = terms.numbers(given)(0.5)
    x = lets(tirx.abs(given))
    is_large = x > half
    square = lets(tirx.Select(is_large, half - x * half, x * x))
    s = lets(tirx.Select(is_large, tirx.sqrt(square), x))
    return is_large, lets(s + s * square * terms.polynomial(_ASIN[grammar.dtype(given)], square))


# atan(t) = t + t^3 P(t^2) for t up to 1, and pi/2 - atan(1/t) beyond.

_ATAN = {
    "float32": terms.coefficients(
        """
        -0.333332986 0.199985296 -0.142640457 0.109513246 -0.0840181336 0.0579483621
        -0.0311872251 0.0109278895 -0.00179782265
        """
    ),
    "float64": terms.coefficients(
        """
        -0.3333333333333307 0.19999999999951748 -0.1428571428258796 0.11111111007337432
        -0.09090907007707144 0.0769227988774962 -0.0666640441287342 0.058805297353463674
        -0.052535263665493985 0.04722346417648828 -0.0421923630683729 0.0366429495812084
        -0.02990528444255022 0.021986311176900298 -0.013901632700927744 0.007197032974997019
        -0.0028850646204426965 0.0008313261150496516 -0.00015215104770754034
        1.3222979464025277e-05
        """
    ),
}


def atan(lets: Lets, given: Value) -> Value:
    """2 ulp."""
    one = terms.numbers(given)(1.0)
    x = lets(tirx.abs(given))
    is_large = x > one
    t = tirx.Select(is_large, one, x) / tirx.Select(is_large, x, one)
    return terms.flipped(_angle(lets, t, is_large), terms.sign(given))


def atan2(lets: Lets, y: Value, x: Value) -> Value:
    """The angle of (x, y): 3 ulp; signs of zeros count."""
    number, integer = terms.numbers(x), terms.layout(x).integer
    width, height = lets(tirx.abs(x)), lets(tirx.abs(y))
    is_large = height > width
    short = lets(tirx.Select(is_large, width, height))
    long = lets(tirx.Select(is_large, height, width))
    t = tirx.Select(short > number(0.0), number(1.0), number(0.0))  # of infinities, of zeros
    angle = _angle(lets, tirx.Select(short < long, short / long, t), is_large)
    is_negative = tirx.reinterpret(integer, x) < tirx.const(0, integer)
    angle = tirx.Select(is_negative, _from_turn(2, angle), angle)
    is_nan = tirx.Or(tirx.isnan(x), tirx.isnan(y))
    return tirx.Select(is_nan, number(math.nan), terms.flipped(angle, terms.sign(y)))


def _angle(lets: Lets, ratio: Value, is_large: Value) -> Value:
    """atan(t), or pi/2 - atan(t)."""
    t = lets(ratio)
    square = lets(t * t)
    angle = lets(t + t * square * terms.polynomial(_ATAN[grammar.dtype(t)], square))
    return lets(tirx.Select(is_large, _from_turn(1, angle), angle))
