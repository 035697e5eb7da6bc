"""Random legal decisions of a sketch, drawn through its formulas.

Tilings are drawn uniformly over ordered factorizations and choices uniformly, thousands at a
time; the constraint formulas keep the legal ones. Where those are rare, legal rows are moved by
single factors to legal neighbours, so the cost does not grow with how rare they are. Structures
(compute locations) are what TVM itself offers for random tilings, a few per call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from felix.errors import InvalidSchedule, UnsupportedSchedule

if TYPE_CHECKING:
    from felix.sketch.sketch import Sketch, Variable

Rows = NDArray[np.int64]

#: Different structures in one call unless the caller says otherwise, drawn from TVM's offers for
#: `STRUCTURE_DRAWS` tilings.
MAX_STRUCTURES = 6
STRUCTURE_DRAWS = 12
CHUNK = 4096
MAX_CHUNKS = 16
MAX_MOVES = 400


def sample(sketch: Sketch, n: int, seed: int, max_structures: int = MAX_STRUCTURES) -> Rows:
    """n legal rows [n, n_variables]: distinct while the space has enough, then repeated.

    Args:
        max_structures: most structures among the rows; each new one costs an extraction.

    Raises:
        InvalidSchedule: no legal row was found.
    """
    if not sketch.variables:
        return np.zeros((n, 0), dtype=np.int64)
    rng = np.random.default_rng([seed, 0x5EED])
    structures = _structures(sketch, rng, max_structures)
    share = -(-n // len(structures))
    parts = [_draw(sketch, structure, share, rng) for structure in structures]
    lacking = n - sum(map(len, parts))
    if lacking > 0 and len(structures) > 1:
        best = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[best] = _draw(sketch, structures[best], len(parts[best]) + lacking, rng)
    rows = _distinct(np.concatenate(parts))
    if not len(rows):
        raise InvalidSchedule(f"no legal decisions were found for {sketch!r}")
    order = rng.permutation(len(rows))
    return rows[np.resize(order, n)]


def _structures(sketch: Sketch, rng: np.random.Generator, limit: int) -> list[tuple[int, ...]]:
    """Structures that TVM offers and the formulas can model, the default one first."""
    columns = [i for i, v in enumerate(sketch.variables) if v.structural]
    if not columns:
        return [()]
    found: dict[tuple[int, ...], None] = {(-1,) * len(columns): None}
    for _ in range(STRUCTURE_DRAWS):
        if len(found) >= limit:
            break
        offered = sketch.tvm_sample(int(rng.integers(1, 2**31 - 1)))
        if offered is not None:
            structure = tuple(offered[c] for c in columns)
            try:
                sketch.formulas.variant(structure)
            except UnsupportedSchedule:
                continue
            found[structure] = None
    return list(found)


def _draw(sketch: Sketch, structure: tuple[int, ...], n: int, rng: np.random.Generator) -> Rows:
    """Distinct legal rows of one structure."""
    legal = np.empty((0, len(sketch.variables)), dtype=np.int64)
    drawn = 0
    for _ in range(MAX_CHUNKS):
        rows = random_rows(sketch.variables, structure, CHUNK, rng)
        drawn += len(rows)
        legal = _distinct(np.concatenate([legal, rows[_is_legal(sketch, structure, rows)]]))
        if len(legal) >= n:
            break
        if len(legal) and len(legal) * 50 < drawn and drawn >= 2 * CHUNK:
            break
    if len(legal) < n and len(legal):
        legal = _walk(sketch, structure, legal, n, rng)
    return legal[rng.permutation(len(legal))[:n]]


def _walk(
    sketch: Sketch, structure: tuple[int, ...], legal: Rows, n: int, rng: np.random.Generator
) -> Rows:
    """More legal rows: random single changes of legal ones."""
    stale = 0
    for _ in range(MAX_MOVES):
        if len(legal) >= n or stale > 8:
            break
        base = legal[rng.integers(len(legal), size=max(256, n))]
        fresh = random_rows(sketch.variables, structure, len(base), rng)
        group = np.array([v.group for v in sketch.variables])
        chosen = rng.choice(np.unique(group), size=len(base))
        moved = np.where(group[None, :] == chosen[:, None], fresh, base)
        before = len(legal)
        keep = moved[_is_legal(sketch, structure, moved)]
        legal = _distinct(np.concatenate([legal, keep]))
        stale = stale + 1 if len(legal) == before else 0
    return legal


def _is_legal(sketch: Sketch, structure: tuple[int, ...], rows: Rows) -> NDArray[np.bool_]:
    program = sketch.formulas.variant(structure).constraint_program
    values = program.exact(rows.astype(np.float64))
    return np.asarray((values <= 0).all(axis=1), dtype=np.bool_)


def _distinct(rows: Rows) -> Rows:
    return np.unique(rows, axis=0) if len(rows) else rows


def random_rows(
    variables: tuple[Variable, ...], structure: tuple[int, ...], n: int, rng: np.random.Generator
) -> Rows:
    """n rows within the domains: uniform factorizations and choices, given locations."""
    rows = np.empty((n, len(variables)), dtype=np.int64)
    locations = iter(structure)
    column = 0
    while column < len(variables):
        variable = variables[column]
        if variable.structural:
            rows[:, column] = next(locations)
            column += 1
        elif variable.kind == "choice":
            rows[:, column] = rng.choice(variable.domain, size=n)
            column += 1
        else:
            parts = [v for v in variables if v.group == variable.group]
            rows[:, column : column + len(parts)] = _factorizations(parts, n, rng)
            column += len(parts)
    return rows


def _factorizations(parts: list[Variable], n: int, rng: np.random.Generator) -> Rows:
    """Uniform ordered factorizations of the extent whose last factor is within its domain."""
    extent, limit = parts[0].extent, max(parts[-1].domain)
    assert extent is not None
    rows = _unbounded(extent, len(parts), n, rng)
    for _ in range(64):
        bad = np.flatnonzero(rows[:, -1] > limit)
        if not len(bad):
            return rows
        rows[bad] = _unbounded(extent, len(parts), len(bad), rng)
    bad = np.flatnonzero(rows[:, -1] > limit)
    rows[bad, 0] *= rows[bad, -1]
    rows[bad, -1] = 1
    return rows


def _unbounded(extent: int, n_parts: int, n: int, rng: np.random.Generator) -> Rows:
    """Each prime's exponent is split over the parts by a uniform composition."""
    rows = np.ones((n, n_parts), dtype=np.int64)
    for prime, power in factorize(extent):
        bars = np.sort(rng.random((n, power + n_parts - 1)).argsort(axis=1)[:, : n_parts - 1])
        edges = np.concatenate(
            [np.full((n, 1), -1), bars, np.full((n, 1), power + n_parts - 1)], axis=1
        )
        rows *= prime ** (np.diff(edges, axis=1) - 1)
    return rows


def factorize(value: int) -> list[tuple[int, int]]:
    """Prime factorization as (prime, power)."""
    result = []
    prime = 2
    while prime * prime <= value:
        power = 0
        while value % prime == 0:
            value //= prime
            power += 1
        if power:
            result.append((prime, power))
        prime += 1
    return [*result, (value, 1)] if value > 1 else result
