"""Rounding: any extent, nearest first, always a legal factorization."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felix.search import rounding
from felix.space import coordinates, factorizations
from tests.support import synthetic

EXTENTS = [1, 2, 7, 11, 13, 43, 55, 64, 197, 512, 1000, 11008, 18944, 30522, 50257, 151936]


def domains_of(extent: int, parts: int, limit: int = 64) -> factorizations.Domains:
    return tuple(v.domain for v in synthetic.tiles("t", 0, extent, parts, limit))


def brute(domains: factorizations.Domains, extent: int) -> list[tuple[int, ...]]:
    return [f for f in itertools.product(*domains) if math.prod(f) == extent]


@pytest.mark.parametrize("extent", [1, 7, 12, 64, 197, 360])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_all_factorizations_are_found(extent: int, parts: int) -> None:
    limit = 512 if parts == 1 else 16
    domains = domains_of(extent, parts, limit)
    rows = factorizations.enumerate_all(domains, extent)
    assert [tuple(row) for row in rows.tolist()] == sorted(brute(domains, extent))
    assert factorizations.count(domains, extent) == len(rows)


@pytest.mark.parametrize("extent", EXTENTS)
def test_any_extent_rounds_to_a_factorization(extent: int) -> None:
    domains = domains_of(extent, 4)
    rng = np.random.default_rng(extent)
    targets = rng.uniform(0, math.log(max(extent, 2)), (20, 4))
    nearest, distance = factorizations.Nearest(domains, extent).nearest(targets, 5)
    assert (nearest.prod(axis=2) == extent).all()
    assert (nearest[:, :, -1] <= 64).all()
    assert (np.diff(distance, axis=1) >= 0).all()


@settings(max_examples=50, deadline=None)
@given(extent=st.integers(1, 600), parts=st.integers(2, 4), data=st.data())
def test_the_nearest_comes_first(extent: int, parts: int, data: st.DataObject) -> None:
    domains = domains_of(extent, parts, 16)
    target = np.asarray([data.draw(st.floats(-1.0, 7.0)) for _ in range(parts)])
    nearest, distance = factorizations.Nearest(domains, extent).nearest(target[None], 3)
    everything = np.asarray(brute(domains, extent))
    expected = np.sort(np.square(np.log(everything) - target).sum(axis=1))[:3]
    np.testing.assert_allclose(distance[0], expected, atol=1e-9)
    actual = np.square(np.log(nearest[0]) - target).sum(axis=1)
    np.testing.assert_allclose(actual, distance[0], atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_legal_point_rounds_to_itself(data: st.DataObject) -> None:
    extent = data.draw(st.sampled_from(EXTENTS))
    domains = domains_of(extent, 4)
    seed = data.draw(st.integers(0, 1000))
    row = synthetic.random_factors(np.random.default_rng(seed), extent, 4, 64)
    nearest, distance = factorizations.Nearest(domains, extent).nearest(np.log([row]), 2)
    assert nearest[0, 0].tolist() == row
    assert distance[0, 0] == pytest.approx(0, abs=1e-20)


def test_the_beam_agrees_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    domains = domains_of(11008, 5)
    table = factorizations.Nearest(domains, 11008)
    monkeypatch.setattr(factorizations, "TABLE_LIMIT", 10)
    beam = factorizations.Nearest(domains, 11008)
    assert table.table is not None and beam.table is None
    targets = np.random.default_rng(0).uniform(0, 4, (25, 5))
    by_table, table_distance = table.nearest(targets, 4)
    by_beam, beam_distance = beam.nearest(targets, 4)
    assert (by_beam.prod(axis=2) == 11008).all()
    assert (by_beam[:, 0] == by_table[:, 0]).all(axis=1).mean() > 0.9
    assert beam_distance.mean() < 1.1 * table_distance.mean()


def test_a_space_too_large_for_a_table_still_rounds() -> None:
    extent = 2**14 * 3**4 * 5**2
    domains = tuple(
        synthetic.divisors(extent) if i < 4 else synthetic.divisors(extent, 64) for i in range(5)
    )
    finder = factorizations.Nearest(domains, extent)
    assert finder.table is None
    target = np.log([[8.0, 45.0, 32.0, 9.0, 320.0]])
    nearest, _ = finder.nearest(target, 3)
    assert (nearest.prod(axis=2) == extent).all() and (nearest[..., -1] <= 64).all()


def test_an_impossible_tiling_is_refused() -> None:
    with pytest.raises(ValueError, match="197"):
        factorizations.Nearest(((1,), (1, 2)), 197)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([12, 197, 512, 11008]), st.integers(0, 10**6))
def test_neighbours_are_legal_and_one_prime_away(extent: int, seed: int) -> None:
    domains = domains_of(extent, 4)
    row = synthetic.random_factors(np.random.default_rng(seed), extent, 4, 64)
    for near in factorizations.neighbours(row, domains):
        assert math.prod(near) == extent and near[-1] <= 64
        changed = [max(a, b) / min(a, b) for a, b in zip(row, near, strict=True) if a != b]
        assert len(changed) == 2 and changed[0] == changed[1]


def sketch_variables() -> tuple[synthetic.Variable, ...]:
    return synthetic.FakeSketch(extents=(512, 197), structural=(-2, -1, 0, 3)).variables


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 6))
def test_roundings_are_distinct_legal_and_ordered(seed: int, k: int) -> None:
    variables = sketch_variables()
    rounder = rounding.Rounder(variables)
    rng = np.random.default_rng(seed)
    values = np.exp(rng.uniform(0, 5, (7, len(variables))))
    values[:, -1] = rng.choice([-2, -1, 0, 3], 7)
    decisions, distance = rounder.round(values, k)
    assert decisions.shape == (7, k, len(variables))
    assert (np.diff(distance, axis=1) >= 0).all()
    for point, rows in zip(values, decisions, strict=True):
        assert len({tuple(row) for row in rows.tolist()}) == k
        for row in rows:
            assert math.prod(row[:4].tolist()) == 512 and math.prod(row[4:8].tolist()) == 197
            assert all(value in v.domain for v, value in zip(variables, row, strict=True))
            assert row[-1] == point[-1], "a structural value stays"


def test_roundings_are_the_best_combinations() -> None:
    """Against all combinations of a small space, by total squared distance."""
    variables = synthetic.FakeSketch(extents=(12, 8), parts=2, limit=8).variables
    rounder = rounding.Rounder(variables)
    values = np.random.default_rng(5).uniform(1, 9, (6, len(variables)))
    decisions, distance = rounder.round(values, 6)
    where = coordinates.Space.of(variables)
    rows = [
        row
        for row in itertools.product(*(v.domain for v in variables))
        if row[0] * row[1] == 12 and row[2] * row[3] == 8
    ]
    scaled = where.scale(np.asarray(rows, float))
    for point, distances in zip(where.scale(values), distance, strict=True):
        expected = np.sort(np.square(scaled - point).sum(axis=1))[:6]
        np.testing.assert_allclose(distances, expected, atol=1e-9)
    assert len(decisions[0]) == 6


def test_unroll_steps_round_in_their_own_scale() -> None:
    variables = (synthetic.choice("unroll", 0, (0, 16, 64, 512)),)
    rounder = rounding.Rounder(variables)
    rounded, _ = rounder.round(np.asarray([[0.4], [5.0], [30.0], [200.0], [9999.0]]), 1)
    assert rounded.ravel().tolist() == [0, 16, 16, 512, 512]
