"""Features of a block that covers more than is read, because its readers' threads overhang."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, topi

from felix.features import spec
from felix.sketch import sketch as sketching
from felix.task import Task
from tests.support.oracle import features


@pytest.mark.parametrize(
    ("sketch", "rows"), [(1, [[4, 0], [64, 0]]), (3, [[4, 8, 0], [32, 4, 0]])]
)
def test_predicates_keep_it_in_its_domain(sketch: int, rows: list[list[int]]) -> None:
    """All but active_trips: the least of the domain's 4 values that pass is 2, the bound is 4."""
    x = te.placeholder((1, 1, 6, 6), name="x")
    y = topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "max")
    y = topi.nn.pool2d(y, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "max")
    chosen = sketching.trace_sketches(Task.from_te([x, y], "cuda"))[sketch]
    stores = [(row.block, row.buffer) for row in chosen.formulas.rows]
    for row in rows:
        counted = features.features(chosen, row)
        for store, values in zip(stores, chosen.formulas.raw(np.array([row]))[0], strict=True):
            formula = dict(zip(spec.NAMES, values.tolist(), strict=True))
            active = counted[store].pop("active_trips")
            assert active <= formula.pop("active_trips") <= 2 * active
            assert formula == pytest.approx(counted[store])
