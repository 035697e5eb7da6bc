"""Smooth forms of the operators of Felix formulas: one table, `RULES`, one rule an operator.

A rule has two evaluations. `exact` is the operator at integer points. `smooth` takes a
temperature T > 0 and returns the value together with its partial derivatives, written by hand:
`felix.autodiff.program` evaluates thousands of nodes a step, in groups, and automatic
differentiation would cost a call per node. Everything is numpy, float64 and elementwise, so
importing this is cheap.

Notation
    T       temperature; smooth -> exact as T -> 0 at every integer point (T may be an array
            that broadcasts, e.g. one value a column of the batch)
    a, b    arguments, relaxed from integers to reals; c a condition in [0, 1]
    phi     the bump, phi(0) = 1; step is its integral from 0 to 1, step(0) = 1/2;
            ramp is the integral of step, the smooth max(z, 0)
    s(v)    asinh(v): linear near 0, a signed logarithm for large |v|

Three devices make the rules useful for values that span 1 to 1e12:

*Half-integer thresholds.* Integers a < b differ by at least 1, so a < b is the same as
b - a - 1/2 > 0 and a tie (a = b) sits clearly on one side; likewise a <= b is b - a + 1/2 > 0,
and a = b is |a - b| < 1/2. A step centred on the tie itself would read 1/2 there at any
temperature; and arguments that are smooth themselves may miss an integer by O(T).

*Widths relative to size.* A comparison is soft over a width T (1 + T M), M = sqrt(1+a^2+b^2):
a share T^2 of the size of what is compared, plus T of one integer. A fixed width would have
no gradient at 1e6; a purely relative one would not separate neighbouring large integers.

*Blending in s.* Selection and min/max are interpolated in s(v), then mapped back by sinh. The
error is then a share of the value, whatever the ratio of the two branches: a soft condition of
0.999 between 1 and 1e9 gives 1.02, not 1e6. Unlike the logarithm it is defined at 0 and below.

The bump is algebraic, phi = (1+z^2)^(-3/2), step = 1/2 + z/(2 sqrt(1+z^2)): its tails fall as
z^-2, so far-away conditions keep a usable gradient (those of sech^2 underflow), and the smooth max
has a finite error (the paper's phi = 1/(1+z^2) has no first moment: its ramp falls below zero by
T log(1/T)). On 12 synthetic problems a descent ends nearer the best known than with either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.symbolic import expr

Array = NDArray[np.float64]
#: A temperature: a number, or an array that broadcasts against the arguments.
Temperature = float | Array
#: A smooth value and its partial derivatives, one an argument.
Smooth = tuple[Array, tuple[Array, ...]]

#: Below this magnitude divisors and logarithm arguments are held constant (gradient 0).
TINY = 1e-9
#: Largest exponent passed to exp, a little below float64 overflow.
MAX_EXPONENT = 700.0
#: Half width of a box, in widths of the bump, below which smoothing it gives the bump itself.
BOX_LIMIT = 1e-4


def bump(z: Array) -> tuple[Array, Array]:
    """phi and its derivative."""
    square = 1.0 / (1.0 + z * z)
    phi = square * np.sqrt(square)
    return phi, -3.0 * z * phi * square


def step(z: Array) -> tuple[Array, Array]:
    """The step and its derivative."""
    root = np.sqrt(1.0 + z * z)
    half = 0.5 * (root + np.abs(z))  # no cancellation: the small side is 1 / (4 half)
    return np.where(z < 0, 0.25 / half, half) / root, 0.5 / (root * root * root)


def ramp(z: Array) -> tuple[Array, Array]:
    """The ramp and its derivative, the step."""
    root = np.sqrt(1.0 + z * z)
    half = 0.5 * (root + np.abs(z))
    value = np.where(z < 0, 0.25 / half, half)
    return value, value / root


@dataclass(frozen=True, slots=True)
class Rule:
    """One operator: its exact function and its smooth form (value and partials)."""

    exact: Callable[..., Array]
    smooth: Callable[[tuple[Array, ...], Temperature], Smooth]


def _margin(a: Array, b: Array, shift: float, t: Temperature) -> tuple[Array, Array, Array]:
    """z = 2 (b - a + shift) / w with w = T (1 + T M), and dz/da, dz/db.

    dz = 2 (db - da) / w - (z / w) dw, and dw = T^2 (a da + b db) / M; M >= 1, so no pole.
    """
    size = np.sqrt(1.0 + a * a + b * b)
    width = t * (1.0 + t * size)
    z = 2.0 * (b - a + shift) / width
    drift = z * (t * t / (width * size))
    return z, -2.0 / width - drift * a, 2.0 / width - drift * b


def _compare(shift: float, args: tuple[Array, ...], t: Temperature) -> Smooth:
    """Step of the margin. Limit: at integers |b - a + shift| >= 1/2, so |z| >= 1/w -> inf."""
    z, z_a, z_b = _margin(args[0], args[1], shift, t)
    value, slope = step(z)
    return value, (slope * z_a, slope * z_b)


def _equal(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """(step(z + h) - step(z - h)) / (step(h) - step(-h)) with z = 2 (b - a) / w and h = 1 / w.

    The box |a - b| < 1/2 convolved with the bump, over its height at a = b: exactly 1 there for
    every T. Cold, h -> inf, it has a flat top, so that arguments which are smooth themselves
    and miss equality by O(T) still count as equal; a bump of width O(T) would forget them. Hot,
    h -> 0, it is the bump of z, used as such where the difference would cancel.
    """
    a, b = args
    size = np.sqrt(1.0 + a * a + b * b)
    half = 1.0 / (t * (1.0 + t * size))
    z, z_a, z_b = _margin(a, b, 0.0, t)
    phi, phi_z = bump(z)
    (right, right_z), (left, left_z) = step(z + half), step(z - half)
    top, top_h = step(half)
    height = 2.0 * top - 1.0
    is_box = half > BOX_LIMIT
    height = np.where(is_box, height, 1.0)
    value = np.where(is_box, (right - left) / height, phi)
    slope = np.where(is_box, (right_z - left_z) / height, phi_z)
    widen = np.where(is_box, (right_z + left_z - 2.0 * value * top_h) / height, 0.0)
    narrow = -half * half * (t * t) / size  # dh/da = narrow a
    return value, (slope * z_a + widen * narrow * a, slope * z_b + widen * narrow * b)


def _and(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """a b: exact for conditions at any T; each partial is the other argument."""
    a, b = args
    return a * b, (b, a)


def _or(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """1 - (1-a)(1-b) = a + b - a b, by De Morgan from the product."""
    a, b = args
    return a + b - a * b, (1.0 - b, 1.0 - a)


def _not(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """1 - a."""
    return 1.0 - args[0], (np.full_like(args[0], -1.0),)


def _select(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """sinh(s(b) + c (s(a) - s(b))): a at c = 1, b at c = 0, in between a geometric blend.

    With y the blended coordinate, d sinh(y) = cosh(y) dy and s'(v) = 1/sqrt(1+v^2), all finite.
    """
    c, a, b = args
    s_a, s_b = np.arcsinh(a), np.arcsinh(b)
    gap = s_a - s_b
    value = np.sinh(s_b + c * gap)
    growth = np.sqrt(1.0 + value * value)
    return value, (
        growth * gap,
        growth * c / np.sqrt(1.0 + a * a),
        growth * (1.0 - c) / np.sqrt(1.0 + b * b),
    )


def _extremum(sign: float, args: tuple[Array, ...], t: Temperature) -> Smooth:
    """Maximum (sign +1) and minimum (sign -1): y = s(b) +- T ramp(+-(s(a) - s(b)) / T).

    T ramp(z/T) -> max(z, 0), so y -> the extremum of s(a), s(b), and sinh keeps order. The
    weight of a is step(+-gap/T) in [0, 1]: at a tie both share the gradient, no jump.
    """
    a, b = args
    s_b = np.arcsinh(b)
    above, weight = ramp(sign * (np.arcsinh(a) - s_b) / t)
    value = np.sinh(s_b + sign * t * above)
    growth = np.sqrt(1.0 + value * value)
    return value, (
        growth * weight / np.sqrt(1.0 + a * a),
        growth * (1.0 - weight) / np.sqrt(1.0 + b * b),
    )


def _absolute(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """|a| = 2 max(a, 0) - a with the smooth ramp; the slope 2 step - 1 is 0 at the corner."""
    above, weight = ramp(args[0] / t)
    return 2.0 * t * above - args[0], (2.0 * weight - 1.0,)


def _staircase(y: Array, width: Temperature) -> tuple[Array, Array]:
    """floor(y) convolved with the Cauchy density of scale `width`, and its derivative.

    floor(y) = y - 1/2 + sum_k sin(2 pi k y) / (pi k) off the jumps. Convolution (the paper's
    phi) multiplies the k-th term by r^k, r = exp(-2 pi width); the series then sums to
    atan2(r sin, 1 - r cos) / pi, and its slope to the Poisson kernel
    (1-r^2) / ((1-r)^2 + 4 r sin^2(pi y)), which is positive and at most 2/(1-r).
    A wide stair is the line y - 1/2: floor's mean over a stair, never off by more than 1/2.
    """
    angle = np.pi * (y - np.floor(y))
    sine, cosine = np.sin(angle), np.cos(angle)
    r = np.exp(-2.0 * np.pi * width)
    gap = -np.expm1(-2.0 * np.pi * width)  # 1 - r
    bend = 2.0 * r * sine * sine
    value = y - 0.5 + np.arctan2(2.0 * r * sine * cosine, gap + bend) / np.pi
    return value, gap * (1.0 + r) / (gap * gap + 2.0 * bend)


def _divisor(b: Array) -> tuple[Array, Array]:
    """The divisor held away from zero, and 1 where it was not touched (its derivative)."""
    safe = np.maximum(b, TINY)
    return safe, (b >= TINY).astype(np.float64)


def _division(shift: float, offset: float, args: tuple[Array, ...], t: Temperature) -> Smooth:
    """floor((a + shift) / b) + offset by the staircase of width T in units of the quotient.

    For integers floor(a/b) = floor((a + 1/2)/b) and ceil(a/b) = floor((a - 1/2)/b) + 1, so the
    nearest jump is 1/(2b) away and the limit is exact at O(T b). Hot, both are lines through
    the mean of the stairs (true division but for the offset), at most 1/2 off.
    """
    b, live = _divisor(args[1])
    y = (args[0] + shift) / b
    value, slope = _staircase(y, t)
    partial = slope / b
    return value + offset, (partial, -partial * y * live)


def _modulo(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """a - b floor(a / b) with the smooth floor; hot it is the mean residue (b - 1)/2."""
    a = args[0]
    b, live = _divisor(args[1])
    y = (a + 0.5) / b
    stair, slope = _staircase(y, t)
    return a - b * stair, (1.0 - slope, (slope * y - stair) * live)


def _rounding(sign: float, args: tuple[Array, ...], t: Temperature) -> Smooth:
    """Floor (sign +1) of any real, and ceiling(x) = -floor(-x) (sign -1).

    An integer x is itself a jump, so the stairs are moved by sqrt(T)/2 and are T wide: both
    vanish with T, the width faster, and the move outgrows the O(T) errors of an argument that
    is smooth itself. At an integer the error is O(sqrt(T)). At T = 1 the rule is the identity.
    """
    x = sign * args[0]
    whole = np.floor(x)  # apart, so that the move is not lost beside a large x
    value, slope = _staircase(x - whole + 0.5 * np.sqrt(t), t)
    return sign * (whole + value), (slope,)


def _product(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """Product of two to four factors; each partial is the product of the others."""
    if len(args) == 2:
        a, b = args
        return a * b, (b, a)
    if len(args) == 3:
        a, b, c = args
        a_b = a * b
        return a_b * c, (b * c, a * c, a_b)
    a, b, c, d = args
    a_b, c_d = a * b, c * d
    return a_b * c_d, (b * c_d, a * c_d, a_b * d, a_b * c)


def _quotient(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """a / b with |b| held above TINY."""
    live = np.abs(args[1]) >= TINY
    inverse = 1.0 / np.where(live, args[1], np.copysign(TINY, args[1]))
    value = args[0] * inverse
    return value, (inverse, -value * inverse * live)


def _power(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """b^e = exp(e ln b) for a positive base, held above TINY and below overflow."""
    base, exponent = np.maximum(args[0], TINY), args[1]
    logarithm = np.log(base)
    power = exponent * logarithm
    value = np.exp(np.minimum(power, MAX_EXPONENT))
    flow = value * (power <= MAX_EXPONENT)
    return value, (flow * exponent / base * (args[0] >= TINY), flow * logarithm)


def _logarithm(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """ln(a) with a held above TINY."""
    safe = np.maximum(args[0], TINY)
    return np.log(safe), ((args[0] >= TINY) / safe,)


def _exponential(args: tuple[Array, ...], t: Temperature) -> Smooth:
    """exp(a), constant beyond MAX_EXPONENT."""
    value = np.exp(np.minimum(args[0], MAX_EXPONENT))
    return value, (value * (args[0] <= MAX_EXPONENT),)


def _truth(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _exact_select(c: Array, a: Array, b: Array) -> Array:
    return np.where(c > 0.5, a, b)


#: Operator of `symbolic.expr` -> rule. Exact quotients are rounded from the true division,
#: which is right for |a| < 2^52: the next quotient is at least 1/b = ulp-visible away.
RULES: dict[type[Any], Rule] = {
    expr.FloorDiv: Rule(lambda a, b: np.floor(a / b), functools.partial(_division, 0.5, 0.0)),
    expr.CeilDiv: Rule(lambda a, b: np.ceil(a / b), functools.partial(_division, -0.5, 1.0)),
    expr.FloorMod: Rule(lambda a, b: a - b * np.floor(a / b), _modulo),
    expr.Minimum: Rule(np.minimum, functools.partial(_extremum, -1.0)),
    expr.Maximum: Rule(np.maximum, functools.partial(_extremum, 1.0)),
    expr.Absolute: Rule(np.abs, _absolute),
    expr.Floor: Rule(np.floor, functools.partial(_rounding, 1.0)),
    expr.Ceiling: Rule(np.ceil, functools.partial(_rounding, -1.0)),
    expr.Less: Rule(lambda a, b: _truth(a < b), functools.partial(_compare, -0.5)),
    expr.LessEqual: Rule(lambda a, b: _truth(a <= b), functools.partial(_compare, 0.5)),
    expr.Equal: Rule(lambda a, b: _truth(a == b), _equal),
    expr.And: Rule(lambda a, b: a * b, _and),
    expr.Or: Rule(lambda a, b: a + b - a * b, _or),
    expr.Not: Rule(lambda a: 1.0 - a, _not),
    expr.Select: Rule(_exact_select, _select),
}

#: Arithmetic that sympy writes itself; smooth already, guarded only where it has a pole.
ARITHMETIC: dict[str, Rule] = {
    "multiply": Rule(lambda *args: functools.reduce(np.multiply, args), _product),
    "divide": Rule(np.divide, _quotient),
    "power": Rule(np.power, _power),
    "log": Rule(np.log, _logarithm),
    "exp": Rule(np.exp, _exponential),
}
