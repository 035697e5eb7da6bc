"""Random legal decisions of a sketch, drawn through its formulas.

Tilings are drawn uniformly over ordered factorizations and choices uniformly, thousands at a
time; the constraint formulas select the legal ones. Where those are rare, legal rows are moved by
single factors to legal neighbours, so the cost does not grow with how rare they are. Structures
(compute locations) are those TVM's own sampler draws, a few per call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from felix.autodiff.program import FormulaProgram
from felix.errors import InvalidSchedule, UnsupportedSchedule
from felix.space import coordinates, factorizations, legality
from felix.space.formulas import Formulas
from felix.space.variables import Variable
from felix.symbolic import interpret

Rows = NDArray[np.int64]
#: Seed -> a row of TVM's own sampler; None where its trace does not apply, or no trace is there.
TvmSample = Callable[[int], tuple[int, ...] | None]


#: Different structures in one call unless the caller says otherwise, of `STRUCTURE_DRAWS` draws.
MAX_STRUCTURES = 6
STRUCTURE_DRAWS = 12
#: Rows drawn together: at first so many for each that is wished, at most `CHUNK`; then `CHUNK`.
CHUNK_SHARE, CHUNK = 256, 4096
MAX_DRAWN = 16 * CHUNK
MAX_MOVES = 400
#: Rows that are repaired together, and moves that make none of them better before it ends.
N_REPAIRED, MAX_STALE = 512, 40


def sample(
    variables: Sequence[Variable],
    formulas: Formulas,
    tvm_sample: TvmSample,
    n: int,
    seed: int,
    max_structures: int,
    owner: object,
) -> Rows:
    """n legal rows [n, n_variables]: distinct while the space has enough, then repeated.

    Args:
        max_structures: most structures among the rows; each new one costs an extraction.

    Raises:
        InvalidSchedule: no legal row turns up; the message is about `owner`.
    """
    if not variables:
        return np.zeros((n, 0), dtype=np.int64)
    rng = np.random.default_rng([seed, 0x5EED])
    spaces = [
        _Space(variables, structure, formulas.of_structure(structure).constraint_program)
        for structure in _structures(variables, formulas, tvm_sample, rng, max_structures)
    ]
    share = -(-n // len(spaces))
    chunk = min(CHUNK, CHUNK_SHARE * max(1, n))
    parts = [space.draw(share, rng, chunk) for space in spaces]
    lacking = n - sum(map(len, parts))
    if lacking > 0 and len(spaces) > 1:
        best = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[best] = spaces[best].draw(len(parts[best]) + lacking, rng)
    rows = _distinct(np.concatenate(parts))
    if n and not len(rows):
        raise InvalidSchedule(f"no legal decisions were found for {owner!r}")
    order = rng.permutation(len(rows))
    return rows[np.resize(order, n)]


def _structures(
    variables: Sequence[Variable],
    formulas: Formulas,
    tvm_sample: TvmSample,
    rng: np.random.Generator,
    limit: int,
) -> list[coordinates.Structure]:
    """Structures that TVM samples and the formulas can model, the default one first."""
    columns = coordinates.structural(variables)
    if not columns:
        return [()]
    structures: dict[coordinates.Structure, None] = {(interpret.ROOT,) * len(columns): None}
    for _ in range(STRUCTURE_DRAWS):
        if len(structures) >= limit:
            break
        row = tvm_sample(int(rng.integers(1, 2**31 - 1)))
        if row is not None:
            structure = coordinates.structure(variables, row)
            if any(row[c] not in variables[c].domain for c in columns):
                continue  # locations of another structure's loops
            try:
                formulas.of_structure(structure)
            except UnsupportedSchedule:
                continue
            structures[structure] = None
    return list(structures)


class _Space:
    """The decisions of one structure."""

    def __init__(
        self,
        variables: Sequence[Variable],
        structure: coordinates.Structure,
        constraints: FormulaProgram,
    ) -> None:
        self._variables = variables
        self._structure = structure
        self._constraints = constraints
        self._groups = np.array([v.group for v in variables])

    def draw(self, n: int, rng: np.random.Generator, chunk: int = CHUNK) -> Rows:
        """At most n distinct legal rows, of `chunk` random ones if those are enough."""
        legal = np.empty((0, len(self._variables)), dtype=np.int64)
        drawn = 0
        while drawn < MAX_DRAWN:
            rows = random_rows(self._variables, self._structure, chunk, rng)
            drawn, chunk = drawn + len(rows), CHUNK
            legal = _distinct(np.concatenate([legal, self._legal_of(rows)]))
            if len(legal) >= n:
                break
            if len(legal) and len(legal) * 50 < drawn and drawn >= 2 * CHUNK:
                break
        if not len(legal):
            legal = self._repaired(rng)
        if len(legal) < n and len(legal):
            legal = self._walk(legal, n, rng)
        return legal[rng.permutation(len(legal))[:n]]

    def _repaired(self, rng: np.random.Generator) -> Rows:
        """Legal rows where random ones are none: in random rows groups are drawn anew, and kept
        where no more constraints fail than before. Each kernel has constraints of its own, which
        all random decisions seldom meet at once.
        """
        rows = random_rows(self._variables, self._structure, N_REPAIRED, rng)
        failed, stale = self._n_failed(rows), 0
        for _ in range(MAX_MOVES):
            if not failed.all() or stale > MAX_STALE:
                break
            moved = self._moved(rows, rng)
            count, before = self._n_failed(moved), failed.sum()
            rows[count <= failed] = moved[count <= failed]
            failed = np.minimum(count, failed)
            stale = 0 if failed.sum() < before else stale + 1
        return _distinct(rows[failed == 0])

    def _moved(self, base: Rows, rng: np.random.Generator) -> Rows:
        """Rows with one group each drawn anew."""
        fresh = random_rows(self._variables, self._structure, len(base), rng)
        chosen = rng.choice(np.unique(self._groups), size=len(base))
        return np.where(self._groups[None, :] == chosen[:, None], fresh, base)

    def _walk(self, legal: Rows, n: int, rng: np.random.Generator) -> Rows:
        """More legal rows: random single changes of legal ones."""
        stale = 0
        for _ in range(MAX_MOVES):
            if len(legal) >= n or stale > 8:
                break
            moved = self._moved(legal[rng.integers(len(legal), size=max(256, n))], rng)
            before = len(legal)
            legal = _distinct(np.concatenate([legal, self._legal_of(moved)]))
            stale = stale + 1 if len(legal) == before else 0
        return legal

    def _n_failed(self, rows: Rows) -> NDArray[np.int64]:
        return legality.n_failed(self._constraints.exact(rows.astype(np.float64)))

    def _legal_of(self, rows: Rows) -> Rows:
        return rows[legality.is_legal(self._constraints.exact(rows.astype(np.float64)))]


def _distinct(rows: Rows) -> Rows:
    return np.unique(rows, axis=0) if len(rows) else rows


def random_rows(
    variables: Sequence[Variable],
    structure: coordinates.Structure,
    n: int,
    rng: np.random.Generator,
) -> Rows:
    """n rows of a structure within the domains: uniform factorizations and choices."""
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
            assert variable.extent is not None
            rows[:, column : column + len(parts)] = factorizations.random_rows(
                variable.extent, len(parts), max(parts[-1].domain), n, rng
            )
            column += len(parts)
    return rows
