"""Coordinates: round trips, the eliminated product, projection, gradients.

Divisors, prime powers and random factorizations of an extent; the nearest: `test_rounding`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from felix.space import coordinates, factorizations
from tests.support import synthetic

SKETCH = synthetic.FakeSketch(extents=(512, 11008), structural=(-2, -1, 0, 3))


def _excess(where: coordinates.Space, x: torch.Tensor) -> float:
    """The most by which a point is beyond a bound."""
    c, point = where.coordinates, x.numpy()
    spread = (point - c.lower) @ c.tilings.T
    return float(np.concatenate([c.lower - point, point - c.upper, spread - c.room], 1).max())


def test_decode_inverts_encode() -> None:
    where = coordinates.Space.of(SKETCH.variables)
    rows = SKETCH.sample(50, seed=1)
    x = where.encode(rows)
    assert x.shape == (50, len(SKETCH.variables) - 2)
    np.testing.assert_allclose(where.decode(x).numpy(), rows, rtol=1e-9, atol=1e-9)
    assert _excess(where, x) <= 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-20.0, 20.0), min_size=9, max_size=9))
def test_projection_lands_inside_and_keeps_the_product(x: list[float]) -> None:
    where = coordinates.Space.of(SKETCH.variables)
    point = where.project(torch.tensor([x], dtype=torch.float64))
    assert _excess(where, point) <= 1e-9
    values = where.decode(point)[0].numpy()
    assert values[:4].prod() == pytest.approx(512)
    assert values[4:8].prod() == pytest.approx(11008)
    assert values[:8].min() >= 1 - 1e-9
    assert max(values[3], values[7]) <= 64 + 1e-9
    torch.testing.assert_close(where.project(point), point)


def test_legal_points_are_not_moved() -> None:
    where = coordinates.Space.of(SKETCH.variables)
    x = where.encode(SKETCH.sample(100, seed=2))
    torch.testing.assert_close(where.project(x), x)


def test_structural_coordinates_have_no_gradient() -> None:
    where = coordinates.Space.of(SKETCH.variables)
    x = where.encode(SKETCH.sample(2, seed=3)).requires_grad_(True)
    where.decode(x).sum().backward()
    structural = ~where.trainable
    assert int(structural.sum()) == 1
    assert (x.grad[:, structural] == 0).all() and (x.grad[:, ~structural] != 0).all()


def test_gradient_of_decoding() -> None:
    where = coordinates.Space.of(synthetic.FakeSketch().variables)
    x = where.encode(synthetic.FakeSketch().sample(2, seed=3)).requires_grad_(True)
    assert torch.autograd.gradcheck(where.decode, (x,))


def test_concatenation_is_side_by_side() -> None:
    a, b = SKETCH, synthetic.FakeSketch(extents=(197,))
    both = coordinates.Space.concatenate(
        [coordinates.Space.of(a.variables), coordinates.Space.of(b.variables)]
    )
    rows = np.concatenate([a.sample(5, 0), b.sample(5, 0)], axis=1)
    x = both.encode(rows)
    np.testing.assert_allclose(both.decode(both.project(x)).numpy(), rows, rtol=1e-9, atol=1e-9)


def test_concatenation_with_a_space_that_has_no_tilings() -> None:
    choices = coordinates.Space.of((synthetic.choice("unroll", 0, (0, 16, 64)),))
    tiled = coordinates.Space.of(synthetic.tiles("t", 0, 12, 2))
    for spaces in ([choices, tiled], [tiled, choices]):
        both = coordinates.Space.concatenate(spaces)
        assert both.coordinates.tilings.shape == (1, 2)
        assert both.coordinates.matrix.shape == (3, 2)
        x = torch.tensor([[9.0, 9.0]], dtype=torch.float64)
        assert _excess(both, both.project(x)) <= 1e-9
    none = coordinates.Space.concatenate([choices, choices])
    assert none.coordinates.tilings.shape == (0, 2)


def test_linear_choices_and_single_part_tilings() -> None:
    variables = (
        *synthetic.tiles("t", 0, 13, 1),
        synthetic.choice("level", 1, (0, 1, 2, 3), log_scale=False),
    )
    where = coordinates.Space.of(variables)
    x = where.encode(np.asarray([[13, 2]]))
    assert x.tolist() == [[2.0]]
    assert where.decode(x).numpy() == pytest.approx(np.asarray([[13.0, 2.0]]))
    assert where.project(x + 9).tolist() == [[3.0]]


def test_structure_reads_structural_values_only() -> None:
    row = SKETCH.sample(1, seed=0)[0].tolist()
    row[-1] = 3
    assert coordinates.structure(SKETCH.variables, row) == (3,)


EXTENTS = [1, 2, 12, 197, 512, 11008, 50257]


@pytest.mark.parametrize("extent", EXTENTS)
def test_divisors_are_all_that_divide(extent: int) -> None:
    divisors = factorizations.divisors(extent)
    assert list(divisors) == [d for d in range(1, extent + 1) if extent % d == 0]


def test_divisors_of_a_huge_extent_take_no_time() -> None:
    assert factorizations.divisors(2**40) == tuple(2**power for power in range(41))


@pytest.mark.parametrize("extent", EXTENTS)
def test_prime_powers_multiply_to_the_extent(extent: int) -> None:
    powers = factorizations.prime_powers(extent)
    assert math.prod(prime**power for prime, power in powers) == extent
    assert [prime for prime, _ in powers] == sorted({prime for prime, _ in powers})
    for prime, power in powers:
        assert power > 0 and all(prime % d for d in range(2, math.isqrt(prime) + 1))


@pytest.mark.parametrize("extent", EXTENTS)
def test_random_rows_are_factorizations_within_the_limit(extent: int) -> None:
    rows = factorizations.random_rows(extent, 4, 64, 500, np.random.default_rng(0))
    assert rows.shape == (500, 4)
    assert (rows.prod(axis=1) == extent).all() and rows[:, -1].max() <= 64


def test_random_rows_are_uniform() -> None:
    rows = factorizations.random_rows(12, 3, 12, 18_000, np.random.default_rng(1))
    domain = factorizations.divisors(12)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(distinct) == factorizations.count((domain,) * 3, 12) == 18
    assert counts.min() > 800 and counts.max() < 1200


def test_a_prime_beyond_the_limit_goes_to_the_outermost_part() -> None:
    rows = factorizations.random_rows(10007, 2, 64, 200, np.random.default_rng(2))
    assert (rows == [10007, 1]).all()
