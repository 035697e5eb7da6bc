"""Arithmetic on scalars that are Python ints or sympy expressions alike.

With ints the result is an int, so a program whose variables have values stays concrete.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy

from felix.symbolic import expr

Scalar = Any  # int | sympy.Expr


def _of_two(
    of_ints: Callable[[int, int], int], of_expressions: Callable[[Any, Any], Any]
) -> Callable[[Scalar, Scalar], Scalar]:
    def operation(a: Scalar, b: Scalar) -> Scalar:
        if isinstance(a, int) and isinstance(b, int):
            return of_ints(a, b)
        return of_expressions(a, b)

    return operation


#: Of divisions, rounded up and down, and what they leave.
ceil_div = _of_two(lambda a, b: -(-a // b), expr.CeilDiv)
floor_div = _of_two(operator.floordiv, expr.FloorDiv)
floor_mod = _of_two(operator.mod, expr.FloorMod)
minimum = _of_two(min, expr.Minimum)
maximum = _of_two(max, expr.Maximum)
#: 1 if a <= b, a < b, a == b, else 0.
less_equal = _of_two(lambda a, b: int(a <= b), expr.LessEqual)
less = _of_two(lambda a, b: int(a < b), expr.Less)
equal = _of_two(lambda a, b: int(a == b), expr.Equal)
#: 1 if both, or either, of two conditions are 1.
both = _of_two(lambda a, b: int(a and b), expr.And)
either = _of_two(lambda a, b: int(a or b), expr.Or)


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
