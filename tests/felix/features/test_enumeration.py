"""What is counted by enumeration, compared with sets of tuples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sympy

from felix.features import iterators
from felix.symbolic import index_expr, ir
from felix.symbolic.expr import FloorDiv, FloorMod

X, Y = index_expr.iter_symbol("i"), index_expr.iter_symbol("j")
VISITED = {X: iterators.Visited(0, 7, 7), Y: iterators.Visited(2, 9, 9)}


def below(left: sympy.Expr, right: int) -> ir.Value:
    sides = (
        ir.Value("iter", False, expr=left),
        ir.Value("iter", False, expr=sympy.Integer(right)),
    )
    return ir.Value("lt", False, sides)


ACCESSES: dict[str, list[iterators.Touching]] = {
    "rows": [((X, Y), ())],
    "neighbours": [((X, Y), ()), ((X, Y + 1), ()), ((X - 1, Y), ())],
    "diagonal": [((X + Y,), ()), ((X - Y,), ())],
    "quotients": [((FloorDiv(X, 2), FloorMod(Y, 4)), ())],
    "guarded": [((X, Y), (below(X + Y, 9),)), ((Y, X), (below(X, 3), below(Y, 5)))],
    "nowhere": [((X, Y), (below(X, 0),))],
    "constant": [((sympy.Integer(3), Y), ()), ((sympy.Integer(3), sympy.Integer(4)), ())],
    "far apart": [((X * (1 << 40), Y), ()), ((X, Y * (1 << 40)), ())],
    "sparse": [((X * (1 << 20), Y * (1 << 12)), ())],
}


@pytest.mark.parametrize("name", ACCESSES)
def test_touched_elements_are_those_of_sets(name: str) -> None:
    touched = set()
    for i, j in itertools.product(range(7), range(2, 11)):
        grid = {X: np.array([i]), Y: np.array([j])}
        for indices, conditions in ACCESSES[name]:
            if all(iterators.can_hold(each, grid).all() for each in conditions):
                touched.add(tuple(index_expr.evaluate(index, grid).item() for index in indices))
    assert iterators.n_touched(ACCESSES[name], [X, Y], VISITED) == len(touched)
