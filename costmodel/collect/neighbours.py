"""Schedules one decision away from given ones: legal by the sketch's own constraints.

A move shifts a prime factor from one part of a tiling to another, or redraws one categorical
decision. Structural decisions (compute locations) are left alone: their legal values depend on
the rest. Notation: rows are decisions [N, V] in the order of the sketch's variables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def around(sketch: Any, rows: NDArray[np.int64], per_row: int, seed: int) -> NDArray[np.int64]:
    """Up to `per_row` distinct legal neighbours of each row; none that is among `rows`."""
    draws = np.random.default_rng(seed)
    moves = _moves(sketch.variables)
    known = {tuple(map(int, row)) for row in rows}
    found: list[tuple[int, ...]] = []
    for row in [tuple(map(int, row)) for row in rows]:
        for _ in range(per_row if moves else 0):
            near = _move(sketch.variables, row, moves[draws.integers(len(moves))], draws)
            if near not in known:
                known.add(near)
                found.append(near)
    batch = np.array(found, dtype=np.int64).reshape(len(found), len(sketch.variables))
    if len(batch) == 0:
        return batch
    legal = (np.asarray(sketch.formulas.constraints_exact(batch)) <= 0).all(axis=1)
    result: NDArray[np.int64] = batch[legal]
    return result


def _moves(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    """Positions that change together: the parts of a tiling, or one choice."""
    groups: dict[int, list[int]] = defaultdict(list)
    moves: list[tuple[int, ...]] = []
    for position, variable in enumerate(variables):
        if variable.kind == "tile":
            groups[variable.group].append(position)
        elif not variable.structural and len(variable.domain) > 1:
            moves.append((position,))
    return moves + [tuple(parts) for parts in groups.values() if len(parts) > 1]


def _move(
    variables: Sequence[Any],
    row: tuple[int, ...],
    positions: tuple[int, ...],
    draws: np.random.Generator,
) -> tuple[int, ...]:
    changed = list(row)
    if len(positions) == 1:
        changed[positions[0]] = int(draws.choice(variables[positions[0]].domain))
        return tuple(changed)
    giver, taker = draws.choice(len(positions), size=2, replace=False)
    primes = prime_factors(changed[positions[giver]])
    if not primes:
        return row
    factor = int(draws.choice(primes))
    changed[positions[giver]] //= factor
    changed[positions[taker]] *= factor
    if changed[positions[taker]] not in variables[positions[taker]].domain:
        return row
    return tuple(changed)


def prime_factors(number: int) -> list[int]:
    """Prime factors with multiplicity."""
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors
