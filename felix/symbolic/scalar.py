"""Arithmetic on scalars that are Python ints or sympy expressions alike.

With ints the result is an int, so a program whose variables have values stays concrete.
"""

from __future__ import annotations

from typing import Any

import sympy

from felix.symbolic import expr

Scalar = Any  # int | sympy.Expr


def ceil_div(a: Scalar, b: Scalar) -> Scalar:
    """ceil(a / b)."""
    return -(-a // b) if _ints(a, b) else expr.CeilDiv(a, b)


def floor_div(a: Scalar, b: Scalar) -> Scalar:
    """floor(a / b)."""
    return a // b if _ints(a, b) else expr.FloorDiv(a, b)


def floor_mod(a: Scalar, b: Scalar) -> Scalar:
    """a mod b."""
    return a % b if _ints(a, b) else expr.FloorMod(a, b)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """min(a, b)."""
    return min(a, b) if _ints(a, b) else expr.Minimum(a, b)


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """max(a, b)."""
    return max(a, b) if _ints(a, b) else expr.Maximum(a, b)


def less_equal(a: Scalar, b: Scalar) -> Scalar:
    """1 if a <= b else 0."""
    return int(a <= b) if _ints(a, b) else expr.LessEqual(a, b)


def less(a: Scalar, b: Scalar) -> Scalar:
    """1 if a < b else 0."""
    return int(a < b) if _ints(a, b) else expr.Less(a, b)


def equal(a: Scalar, b: Scalar) -> Scalar:
    """1 if a == b else 0."""
    return int(a == b) if _ints(a, b) else expr.Equal(a, b)


def both(a: Scalar, b: Scalar) -> Scalar:
    """1 if the conditions a and b are both 1."""
    return int(a and b) if _ints(a, b) else expr.And(a, b)


def either(a: Scalar, b: Scalar) -> Scalar:
    """1 if a or b is 1."""
    return int(a or b) if _ints(a, b) else expr.Or(a, b)


def negated(a: Scalar) -> Scalar:
    """1 - a for a condition."""
    return 1 - a if isinstance(a, int) else expr.Not(a)


def select(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """a where condition is 1, else b."""
    if isinstance(condition, int):
        return a if condition else b
    return expr.Select(condition, a, b)


def is_static(value: Scalar, number: int) -> bool:
    """True if `value` is that number whatever the variables are."""
    return bool(value == number)


def rational(value: Scalar) -> Scalar:
    """A number that divides exactly in formulas (a sympy rational)."""
    return sympy.sympify(value)


def is_negative(value: Scalar) -> bool:
    """True for a number below 0, or a product of positive variables with a negative factor."""
    if isinstance(value, int):
        return value < 0
    return bool(value.as_coeff_Mul()[0] < 0)


def spread(span: Scalar, extent: Scalar, coefficient: Scalar) -> Scalar:
    """Span of a number with `span` values plus the multiples of `coefficient` of a component.

    span + (extent - 1) |coefficient|; where the span is the coefficient, as it is for the lower
    components of one number, that is their product.
    """
    if span == coefficient:
        return span * extent
    return span + (extent - 1) * (-coefficient if is_negative(coefficient) else coefficient)


def plain(value: Scalar) -> Scalar:
    """A sympy integer as a Python int; anything else unchanged."""
    return int(value) if getattr(value, "is_Integer", False) else value


def _ints(a: Scalar, b: Scalar) -> bool:
    return isinstance(a, int) and isinstance(b, int)
