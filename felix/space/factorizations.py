"""Factorizations of a tiled extent: divisors, random ones, all of them, the nearest, neighbours.

A factorization writes an extent as a product of one factor a part, outermost first. The nearest
ones to real tile sizes are what relaxed points round to. Distance is Euclidean in ln v over the
parts of one tiling, so a step from 1 to 2 counts as one from 128 to 256. A tiling with at most
`TABLE_LIMIT` factorizations is tabulated once and searched by a k-d tree (512 in four parts has
220, 11008 has 660); the few larger ones are searched by a beam over the parts. Any extent works,
primes included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import sympy
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Domains of the parts of a tiling, outermost first.
Domains = tuple[tuple[int, ...], ...]

#: Largest number of factorizations in a table.
TABLE_LIMIT = 50_000
#: Width of the beam for tilings beyond the table: partial factorizations a part, as a multiple of
#: the number of results.
BEAM_WIDTH = 16


#: Draws of a row whose last factor is outside of its domain, before it is set to 1.
MAX_DRAWS = 64


def divisors(extent: int) -> tuple[int, ...]:
    """The divisors of the extent, ascending."""
    return tuple(sympy.divisors(extent))


@lru_cache(maxsize=65536)
def prime_powers(value: int) -> tuple[tuple[int, int], ...]:
    """Prime factorization as (prime, power), primes ascending."""
    return tuple(sorted(sympy.factorint(int(value)).items()))


def random_rows(
    extent: int, n_parts: int, largest_last: int, n: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """n factorizations [n, n_parts], uniform over those with a last factor within its limit."""
    rows = _unbounded_rows(extent, n_parts, n, rng)
    for _ in range(MAX_DRAWS):
        above = np.flatnonzero(rows[:, -1] > largest_last)
        if not len(above):
            return rows
        rows[above] = _unbounded_rows(extent, n_parts, len(above), rng)
    above = np.flatnonzero(rows[:, -1] > largest_last)
    rows[above, 0] *= rows[above, -1]
    rows[above, -1] = 1
    return rows


def _unbounded_rows(
    extent: int, n_parts: int, n: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Each prime's exponent is split over the parts by a uniform composition."""
    rows = np.ones((n, n_parts), dtype=np.int64)
    for prime, power in prime_powers(extent):
        bars = np.sort(rng.random((n, power + n_parts - 1)).argsort(axis=1)[:, : n_parts - 1])
        edges = np.concatenate(
            [np.full((n, 1), -1), bars, np.full((n, 1), power + n_parts - 1)], axis=1
        )
        rows *= prime ** (np.diff(edges, axis=1) - 1)
    return rows


def count(domains: Domains, extent: int) -> int:
    """Number of ways to write `extent` as a product with one factor of each domain."""
    ways = {extent: 1}
    for domain in reversed(domains):
        following: dict[int, int] = {}
        for rest, number in ways.items():
            for factor in domain:
                if rest % factor == 0:
                    left = rest // factor
                    following[left] = following.get(left, 0) + number
        ways = following
    return ways.get(1, 0)


def enumerate_all(domains: Domains, extent: int) -> NDArray[np.int64]:
    """Every factorization, [n, n_parts], in lexicographic order."""
    reachable = _reachable(domains, extent)
    rows: list[tuple[int, ...]] = []
    stack: list[tuple[tuple[int, ...], int]] = [((), extent)]
    while stack:
        inner, rest = stack.pop()
        part = len(domains) - 1 - len(inner)
        if part < 0:
            rows.append(inner)
            continue
        for factor in domains[part]:
            if rest % factor == 0 and rest // factor in reachable[part]:
                stack.append(((factor, *inner), rest // factor))
    return np.asarray(sorted(rows), np.int64).reshape(-1, len(domains))


def _reachable(domains: Domains, extent: int) -> list[set[int]]:
    """Per part i, the products that parts 0..i-1 can form and that divide the extent."""
    sets = [{1}]
    for domain in domains[:-1]:
        sets.append({p * f for p in sets[-1] for f in domain if extent % (p * f) == 0})
    return sets


class Nearest:
    """Finds the factorizations of one tiling that are closest to real tile sizes."""

    def __init__(self, domains: Domains, extent: int) -> None:
        self.domains = domains
        self.extent = extent
        self.total = count(domains, extent)
        if not self.total:
            raise ValueError(f"no factorization of {extent} fits its domains")
        self._reachable = _reachable(domains, extent)
        self.table: NDArray[np.int64] | None = None
        if self.total <= TABLE_LIMIT:
            import scipy.spatial  # takes a third of a second, and only rounding needs it

            self.table = enumerate_all(domains, extent)
            self._tree = scipy.spatial.cKDTree(np.log(self.table))

    def nearest(self, targets: Array, k: int) -> tuple[NDArray[np.int64], Array]:
        """Up to k nearest factorizations of each target.

        Args:
            targets: [n, n_parts] ln of real tile sizes.
            k: how many.

        Returns:
            Factors [n, m, n_parts] and squared distances [n, m], nearest first; m = k, or fewer
            if the tiling has fewer factorizations.
        """
        k = min(k, self.total)
        if self.table is None:
            beams = [self._beam(target, k) for target in targets]
            return np.stack([f for f, _ in beams]), np.stack([d for _, d in beams])
        distance, index = self._tree.query(targets, k=k)
        shape = (len(targets), k)
        return self.table[index.reshape(shape)], np.square(distance.reshape(shape))

    def _beam(self, target: Array, k: int) -> tuple[NDArray[np.int64], Array]:
        """Innermost part first; a partial choice costs its own squared distance plus the least
        that the rest must add: the mismatch of the remaining product, spread evenly."""
        beam: list[tuple[float, float, int, tuple[int, ...]]] = [(0.0, 0.0, self.extent, ())]
        for part in range(len(self.domains) - 1, -1, -1):
            ln_outer = float(target[:part].sum())
            following = []
            for _, cost, rest, inner in beam:
                for factor in self.domains[part]:
                    left = rest // factor
                    if rest % factor or left not in self._reachable[part]:
                        continue
                    spent = cost + (np.log(factor) - target[part]) ** 2
                    ahead = (np.log(left) - ln_outer) ** 2 / part if part else 0.0
                    following.append((spent + ahead, spent, left, (factor, *inner)))
            beam = sorted(following)[: BEAM_WIDTH * k]
        best = beam[:k]
        best += [best[-1]] * (k - len(best))
        return np.asarray([b[3] for b in best], np.int64), np.asarray([b[0] for b in best])


@lru_cache(maxsize=256)
def finder(domains: Domains, extent: int) -> Nearest:
    """The `Nearest` of a tiling; cached, because the sketches of a task share their tilings."""
    return Nearest(domains, extent)


def neighbours(factors: Sequence[int], domains: Domains) -> list[tuple[int, ...]]:
    """All factorizations one prime factor away: a prime moved from one part to another."""
    rows = set()
    for i, value in enumerate(factors):
        for prime, _ in prime_powers(value):
            for j in range(len(factors)):
                if i != j:
                    moved = list(factors)
                    moved[i] //= prime
                    moved[j] *= prime
                    if moved[i] in domains[i] and moved[j] in domains[j]:
                        rows.add(tuple(moved))
    return sorted(rows)
