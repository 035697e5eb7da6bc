"""One tolerance decides legality, in sampling, in scoring and for callers."""

from __future__ import annotations

import numpy as np

from felix.search import scoring
from felix.sketch import legality
from tests.support import synthetic


def test_a_row_is_legal_where_all_constraints_hold() -> None:
    over = 2 * legality.TOLERANCE
    values = np.asarray([[-1.0, 0.0], [-1.0, legality.TOLERANCE], [over, -1.0], [-1.0, over]])
    assert legality.is_legal(values).tolist() == [True, True, False, False]


def test_rows_without_constraints_are_legal() -> None:
    assert legality.is_legal(np.zeros((3, 0))).tolist() == [True] * 3


def test_scores_follow_the_same_rule() -> None:
    sketch = synthetic.FakeSketch(extents=(512,), capacity=64, with_choices=False)
    rows = np.asarray([[2, 4, 16, 4], [1, 4, 16, 8], [512, 1, 1, 1]])  # at the limit, over, under
    values = sketch.of_structure(()).constraint_program.exact(rows.astype(np.float64))
    legal = scoring.Scorer([sketch], synthetic.CostModel()).legal(0, rows)
    assert legal.tolist() == legality.is_legal(values).tolist() == [True, False, True]


def test_constraints_that_fail_are_counted_a_row() -> None:
    constraints = np.array([[-1.0, 0.0, 1e-12], [1.0, 0.0, np.nan]])
    assert legality.n_failed(constraints).tolist() == [0, 2]
    assert legality.is_legal(constraints).tolist() == [True, False]
