"""Divisors, prime powers and random factorizations of an extent; the nearest: `test_rounding`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from felix.sketch import factorizations

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
