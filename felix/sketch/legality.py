"""Which decisions are legal, from the values of their constraints.

A constraint g(x) <= 0 is a difference of logarithms of integer ratios, so that rounding in the
last place can leave an exact fit a little above 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: A constraint holds up to this much.
TOLERANCE = 1e-9


def is_legal(constraints: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each row of exact constraint values [n, n_constraints] meets all of them."""
    return np.asarray((constraints <= TOLERANCE).all(axis=1), dtype=np.bool_)
