"""Smooth rules: limits at integers, finite gradients, differences; sparse products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felix.autodiff import passes, smoothing
from felix.symbolic import expr

CONDITIONS = (expr.And, expr.Or, expr.Not)
DIVISIONS = (expr.FloorDiv, expr.CeilDiv, expr.FloorMod)
OPERATORS = list(expr.OPERATORS)
integers = st.integers(0, 10**9)


def column(*values: float) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray([value], dtype=np.float64) for value in values)


def smooth(operator: type, args: tuple, t: float) -> smoothing.Smooth:
    return smoothing.RULES[operator].smooth(column(*args), t)


def arity(operator: type) -> int:
    return int(operator.nargs.args[0])


def draw_arguments(data: st.DataObject, operator: type) -> tuple[int, ...]:
    if operator in CONDITIONS:
        return tuple(data.draw(st.integers(0, 1)) for _ in range(arity(operator)))
    if operator is expr.Select:
        return data.draw(st.integers(0, 1)), data.draw(integers), data.draw(integers)
    if operator in DIVISIONS:
        return data.draw(integers), data.draw(st.integers(1, 10**4))
    near = data.draw(integers)
    other = st.one_of(integers, st.integers(-3, 3).map(lambda d: near + d))
    return (near, *(data.draw(other) for _ in range(arity(operator) - 1)))


def test_one_rule_for_every_operator() -> None:
    assert set(smoothing.RULES) == set(expr.OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_exact_rule_equals_the_symbolic_operator(operator: type, data: st.DataObject) -> None:
    args = draw_arguments(data, operator)
    expected = operator(*args)
    assert float(expected) == smoothing.RULES[operator].exact(*column(*args))[0]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_smooth_tends_to_exact_at_integers(operator: type, data: st.DataObject) -> None:
    args = draw_arguments(data, operator)
    exact = smoothing.RULES[operator].exact(*column(*args))[0]
    value, partials = smooth(operator, args, 1e-11)
    assert abs(value[0] - exact) <= 1e-3 * max(1.0, abs(exact)) ** 0.5 + 1e-6 * abs(exact)
    assert all(np.isfinite(p).all() for p in partials)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.__name__)
def test_error_shrinks_with_the_temperature(operator: type) -> None:
    """Over a grid of small integers the worst error falls with T, and gets small."""
    grid = range(2) if operator in CONDITIONS else range(1, 7)
    axes = np.meshgrid(*[np.asarray(grid, float)] * arity(operator))
    args = [a.ravel() for a in axes]
    if operator is expr.Select:
        args[0] = np.minimum(args[0] - 1, 1.0)
    exact = smoothing.RULES[operator].exact(*args)
    worst = []
    for t in (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4):
        value, _ = smoothing.RULES[operator].smooth(tuple(args), t)
        worst.append(float(np.abs(value - exact).max()))
    assert worst[-1] < (1e-2 if operator in (expr.Floor, expr.Ceiling) else 4e-3)
    assert worst[-1] <= worst[-2] <= worst[-3] <= max(worst[:3])


def _difference(operator: type, args: tuple[float, ...], position: int, t: float) -> float:
    """The partial of a smooth operator by central differences of two steps (Richardson)."""

    def central(step: float) -> float:
        moved = [list(args), list(args)]
        moved[0][position] -= step
        moved[1][position] += step
        low, high = (float(smooth(operator, tuple(m), t)[0][0]) for m in moved)
        return (high - low) / (2 * step)

    step = 1e-6 * max(1.0, abs(args[position])) * t
    return (4 * central(step / 2) - central(step)) / 3


def test_partials_of_many_periods_agree_with_differences() -> None:
    """Thousands of periods of a remainder: the steps are not small beside one."""
    args = (2549.6015625, 0.5)
    _, (partial, _) = smooth(expr.FloorMod, args, 0.2)
    assert _difference(expr.FloorMod, args, 0, 0.2) == pytest.approx(partial[0], rel=2e-3)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), t=st.sampled_from([1.0, 0.5, 0.2, 0.05]))
def test_partials_agree_with_differences(operator: type, t: float, data: st.DataObject) -> None:
    condition = st.floats(0.0, 1.0)
    size = st.floats(0.5, 3000.0)
    kinds = [condition if operator in CONDITIONS else size] * arity(operator)
    if operator is expr.Select:
        kinds[0] = condition
    args = tuple(data.draw(kind) for kind in kinds)
    value, partials = smooth(operator, args, t)
    for position, partial in enumerate(partials):
        assert np.isfinite(partial).all()
        difference = _difference(operator, args, position, t)
        tolerance = 2e-3 * (abs(difference) + abs(partial[0])) + 1e-4 * max(1, abs(value[0]))
        assert abs(difference - partial[0]) <= tolerance, (args, difference, partial)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_finite_everywhere(operator: type, data: st.DataObject) -> None:
    anything = st.floats(-1e12, 1e12)
    condition = st.floats(0.0, 1.0)
    kinds = [condition if operator in CONDITIONS else anything] * arity(operator)
    if operator is expr.Select:
        kinds[0] = condition
    args = tuple(data.draw(kind) for kind in kinds)
    t = data.draw(st.sampled_from([2.0, 1.0, 0.1, 1e-3, 1e-6]))
    value, partials = smooth(operator, args, t)
    assert np.isfinite(value).all()
    assert all(np.isfinite(p).all() for p in partials)


@pytest.mark.parametrize("name", sorted(smoothing.ARITHMETIC))
def test_arithmetic_is_finite_at_its_poles(name: str) -> None:
    for pair in ((0.0, 0.0), (5.0, 0.0), (-1.0, -0.0), (1e12, 1e12), (800.0, 900.0)):
        args = column(*pair)[: 1 if name in ("log", "exp") else 2]
        rule = smoothing.ARITHMETIC[name]
        value, partials = rule.smooth(args, 0.1)
        assert np.isfinite(value).all()
        assert all(np.isfinite(p).all() for p in partials)


def test_a_bump_and_its_integrals() -> None:
    z = np.linspace(-30, 30, 60001)
    phi, phi_slope = smoothing.bump(z)
    step, step_slope = smoothing.step(z)
    ramp, ramp_slope = smoothing.ramp(z)
    assert smoothing.bump(np.zeros(1))[0][0] == 1.0
    assert smoothing.step(np.zeros(1))[0][0] == pytest.approx(0.5)
    np.testing.assert_allclose(ramp_slope, step, atol=1e-12)
    np.testing.assert_allclose(np.gradient(phi, z)[1:-1], phi_slope[1:-1], atol=1e-5)
    np.testing.assert_allclose(np.gradient(step, z)[1:-1], step_slope[1:-1], atol=1e-5)
    np.testing.assert_allclose(np.gradient(ramp, z)[1:-1], ramp_slope[1:-1], atol=1e-5)
    np.testing.assert_allclose(step_slope / step_slope.max(), phi, atol=1e-12)


def test_a_loop_of_one_is_not_nearly_nontrivial() -> None:
    """The original reads .94 for "extent 1 is non-trivial" and .98 for extent 2."""
    trivial = smooth(expr.Less, (1, 1), 0.1)[0][0]
    nontrivial = smooth(expr.Less, (1, 2), 0.1)[0][0]
    assert trivial < 0.01
    assert nontrivial > 0.99


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_comparisons_have_gradients_at_any_size(size: float) -> None:
    """A value half the limit still feels it: the slope per unit of ln(a) is not negligible."""
    _, partials = smooth(expr.LessEqual, (size, 2 * size), 0.5)
    assert abs(partials[0][0] * size) > 0.04


def test_blending_is_geometric() -> None:
    """A condition that is nearly false must not let a large branch dominate."""
    value = smooth(expr.Select, (0.001, 1e9, 1.0), 0.1)[0][0]
    assert 1.0 < value < 1.1


@settings(max_examples=100, deadline=None)
@given(a=st.integers(0, 10**6), b=st.integers(1, 4096), t=st.floats(1e-3, 2.0))
def test_soft_divisions_stay_within_half_a_stair(a: int, b: int, t: float) -> None:
    for operator in (expr.FloorDiv, expr.CeilDiv):
        exact = float(operator(a, b))
        assert abs(smooth(operator, (a, b), t)[0][0] - exact) <= 0.5 + 1e-9


def test_hot_staircase_is_a_line() -> None:
    y = np.linspace(0.0, 8.0, 200)
    value, slope = smoothing._staircase(y, 2.0)
    np.testing.assert_allclose(value, y - 0.5, atol=1e-5)
    np.testing.assert_allclose(slope, 1.0, atol=1e-4)


def test_temperature_may_differ_per_point() -> None:
    args = (np.asarray([[4.0, 4.0]]), np.asarray([[5.0, 5.0]]))
    rule: Callable = smoothing.RULES[expr.Less].smooth
    value, _ = rule(args, np.asarray([1.0, 0.01]))
    assert value[0, 0] < 0.9 < value[0, 1]


def product(matrix: passes.SparseRows, dense: passes.Array) -> passes.Array:
    """The product, in memory that held something else."""
    out = np.full((len(matrix.ends) - 1, dense.shape[1]), np.nan)
    matrix.multiply(dense, out)
    return out


def test_rows_times_a_dense_matrix() -> None:
    rows = [([0, 3], [1.0, -2.0]), ([], []), ([2], [0.5])]
    matrix = passes.SparseRows.make(rows, 4)
    dense = np.arange(8.0).reshape(4, 2)
    assert product(matrix, dense).tolist() == [[-12.0, -13.0], [0.0, 0.0], [2.0, 2.5]]
    assert matrix.rows.tolist() == [0, 0, 2]


def test_entries_in_any_order_and_parts_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    whole = np.where(rng.random((7, 9)) < 0.4, rng.normal(size=(7, 9)), 0.0)
    entries = rng.permutation(np.argwhere(whole))
    rows, columns = entries.T
    matrix = passes.SparseRows.of_entries(rows, columns, whole[rows, columns], whole.shape)
    dense = rng.normal(size=(9, 3))
    np.testing.assert_allclose(product(matrix, dense), whole @ dense, atol=1e-12)
    np.testing.assert_allclose(product(matrix.part(2, 5), dense), (whole @ dense)[2:5], atol=1e-12)
