"""What expressions show of their values: whether they are integers, or not below 0; spans.

How much work the symbolic program of nested compute locations takes.
"""

from __future__ import annotations

import itertools

import pytest
import sympy
from tvm import te, topi

import felix
from felix.features import iterators
from felix.symbolic import expr, scalar

X, Y = expr.variable("x"), expr.variable("y")


def test_rounding_of_integers_disappears() -> None:
    for whole in (expr.CeilDiv(X, Y), expr.FloorMod(X, Y), X * Y):
        assert expr.Floor(whole) is whole and expr.Ceiling(whole) is whole


def test_rounding_of_picked_fractions_stays() -> None:
    fractions = (
        expr.Minimum(X / 3, Y),
        expr.Maximum(Y, X / 3),
        expr.Absolute(X / 3 - Y),
        expr.Select(expr.Less(X, Y), X / 2, Y),
    )
    for fraction in fractions:
        assert isinstance(expr.Floor(fraction), expr.Floor)
        assert isinstance(expr.Ceiling(fraction), expr.Ceiling)


def test_nonnegative_is_what_is_visibly_so() -> None:
    a, b = expr.FloorMod(X, Y), expr.Maximum(X, Y)
    for value in (X, X * Y + 3, X / Y, a * X + b, expr.Select(expr.Less(X, Y), X, a), Y**2):
        assert expr.is_nonnegative(value) and expr.Absolute(value) is value
    for value in (X - Y, -X, X * (Y - 1) - 1, expr.Minimum(X - Y, X)):
        assert not expr.is_nonnegative(value)
        assert isinstance(expr.Absolute(value), expr.Absolute)


def test_the_span_of_a_number_is_the_product_of_the_extents_of_its_components() -> None:
    assert scalar.spread(Y, X, Y) == X * Y
    for span, extent, coefficient in ((4, 3, 4), (4, 3, 5), (2, 5, 4), (3, 2, -2), (1, 7, 1)):
        values = {abs(coefficient) * i for i in range(extent)}
        assert scalar.spread(span, extent, coefficient) == max(values) + span
    assert scalar.spread(Y, X, -Y) == Y + (X - 1) * Y


@pytest.mark.parametrize(
    "value",
    [
        X * (Y - 1),
        (X + 1) ** 2 / Y,
        3 * X * Y - X + 1,
        expr.CeilDiv(X * (Y + 1), Y + 2) * (X + Y),
        sympy.Integer(4),
        X / (X * Y + Y),
    ],
    ids=str,
)
def test_expanded_is_what_sympy_expands(value: sympy.Expr) -> None:
    assert expr.expanded(value) == sympy.expand(value)


def test_expanding_makes_a_part_once_however_often_it_occurs() -> None:
    value, depth = X * (Y + 1), 10
    for _ in range(depth):
        value = expr.Maximum(value + X, value * Y)
    before = _n_operators()
    made = expr.expanded(value)
    assert _n_operators() - before == depth
    assert made == sympy.expand(value)


def _n_operators() -> int:
    """How often an operator was asked for so far."""
    asked = expr._interned.cache_info()
    return asked.hits + asked.misses


def test_equal_operators_are_one_object_however_long_ago_the_first_was_made() -> None:
    first = expr.Maximum(X + Y, X * Y)
    expr._interned.cache_clear()
    assert expr.Maximum(X + Y, X * Y) is first


def test_one_value_is_at_least_another_where_no_coefficient_over_1_is_negative() -> None:
    """Every polynomial of small coefficients, against the expansion itself."""
    for a, b, c, d in itertools.product(range(-2, 3), repeat=4):
        value = a * X * Y + b * X + c * Y**2 + d
        over = sympy.Poly(value.subs({X: X + 1, Y: Y + 1}, simultaneous=True), X, Y)
        assert iterators._at_least(value, sympy.Integer(0)) == all(k >= 0 for k in over.coeffs())
    assert not iterators._at_least(X, X / Y)


def test_work_does_not_multiply_with_the_depth_of_chained_windows() -> None:
    """Three pools, each computed in a loop of the next: about 1,300 operators are asked for.

    A walk of the extents as trees would ask for 20,000, and for each further pool several times as
    many.
    """
    x = te.placeholder((1, 8, 16, 16), name="x")
    pooled = x
    for _ in range(3):
        pooled = topi.nn.pool2d(pooled, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max")
    (sketch,) = [
        each
        for each in felix.trace_sketches(felix.Task.from_te([x, pooled], "llvm -num-cores 4"))
        if each.index == 8
    ]
    before = _n_operators()
    sketch.symbolic((1, 5, 5, 5, 9))
    assert _n_operators() - before < 5_000
