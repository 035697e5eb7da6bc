"""Integer-ness of operators: rounding disappears only where the value is an integer."""

from __future__ import annotations

from felix.symbolic import expr

X, Y = expr.variable("x"), expr.variable("y")


def test_rounding_of_integers_disappears() -> None:
    for whole in (expr.CeilDiv(X, Y), expr.FloorMod(X, Y), X * Y):
        assert expr.Floor(whole) is whole and expr.Ceiling(whole) is whole


def test_rounding_of_picked_fractions_stays() -> None:
    fractions = (expr.Minimum(X / 3, Y), expr.Maximum(Y, X / 3), expr.Absolute(X / 3 - Y),
                 expr.Select(expr.Less(X, Y), X / 2, Y))  # fmt: skip
    for fraction in fractions:
        assert isinstance(expr.Floor(fraction), expr.Floor)
        assert isinstance(expr.Ceiling(fraction), expr.Ceiling)
