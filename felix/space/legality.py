"""Which decisions are legal, from the values of their constraints, and which sketches have any.

A constraint g(x) <= 0 is a difference of logarithms of integer ratios, so that rounding in the
last place can leave an exact fit a little above 0.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from felix import errors

#: A constraint holds up to this much.
TOLERANCE = 1e-9


def is_legal(constraints: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each row of exact constraint values [n, n_constraints] meets all of them."""
    return np.asarray((constraints <= TOLERANCE).all(axis=1), dtype=np.bool_)


def n_failed(constraints: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many constraints each row of exact values [n, n_constraints] does not meet."""
    return np.asarray((~(constraints <= TOLERANCE)).sum(axis=1), dtype=np.int64)


class Sampled(Protocol):
    """A sketch of either kind, as far as it is asked here."""

    def sample(self, n: int, seed: int, max_structures: int) -> NDArray[np.int64]: ...


def make_formulas(sketch: Sampled) -> str | None:
    """Make a sketch's formulas, or read them from the cache; why it has no legal schedules, None
    if it has."""
    try:
        sketch.sample(1, seed=1, max_structures=1)
    except (errors.InvalidSchedule, errors.UnsupportedSchedule) as error:
        return str(error)
    return None
