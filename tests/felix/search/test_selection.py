"""Scores and the pool of a round, and which of its candidates are measured."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from felix.features.kind import FeatureKind
from felix.search import build_time, scoring, selection
from felix.search import history as history_module
from felix.search.interface import Candidate
from tests.support import synthetic
from tests.support.synthetic import programs_of_a_task

torch.set_num_threads(1)


def test_scores_keep_their_rows_when_some_are_illegal() -> None:
    """The illegal rows stay in place, as NaN."""
    sketch = synthetic.FakeSketch(capacity=32)
    wide = synthetic.FakeSketch()
    rows = wide.sample(64, seed=1)
    scorer = scoring.Scorer([sketch], synthetic.CostModel())
    scores = scorer.score(0, rows).ln_latency
    legal = (rows[:, 2] * rows[:, 3]) <= 32
    assert 0 < legal.sum() < 64
    np.testing.assert_array_equal(np.isnan(scores), ~legal)
    for row, score in zip(rows[legal], scores[legal], strict=True):
        assert score == pytest.approx(scorer.predict(0, row[None])[0])


def test_what_the_model_predicted_in_a_round_is_not_predicted_again() -> None:
    sketch = synthetic.FakeSketch()
    rows = np.unique(sketch.sample(40, seed=3), axis=0)
    model, asked = synthetic.CostModel(), []

    def counting(features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        asked.append(len(features))
        return model(features, mask)

    scorer = scoring.Scorer([sketch], counting)
    known: dict[bytes, float] = {}
    first = scorer.score(0, rows, known)
    n_features = len(set(first.fingerprints.tolist()))
    assert sum(asked) == len(known) == n_features
    again = scorer.score(0, rows, known)
    assert sum(asked) == n_features
    np.testing.assert_array_equal(again.ln_latency, first.ln_latency)
    scorer.score(0, rows)  # as after the model learned something
    assert sum(asked) == 2 * n_features


def test_the_best_of_a_pool_are_the_first_of_its_ranking() -> None:
    pool = empty_pool()
    scored(pool, 9, structure=1, first=5.0)
    scored(pool, 9, structure=0, first=2.0)
    ranked = pool.ranked()
    assert pool.best(4) == ranked[:4]
    beside = {c.key for c in ranked[1:5]}
    assert pool.best(3, beside) == [ranked[0], *ranked[5:7]]


def test_candidates_apart_are_the_best_with_few_values_in_common() -> None:
    pool = empty_pool()
    scored(pool, 4, structure=0, first=2.0)  # differ in four values from each other
    for i in range(3):  # differ in one value from the best, and in two from each other
        near = (0, *(i + 1 if j == i else 0 for j in range(4)))
        put(pool, near, (0,), 2.1 + 0.1 * i)
    apart = pool.apart(3, 1)
    assert [c.acquisition for c in apart] == [2.0, 3.0, 4.0]
    assert pool.apart(3, 0) == pool.best(3)
    beside = {apart[0].key}
    assert [c.acquisition for c in pool.apart(3, 1, beside)] == [2.1, 3.0, 4.0]
    # of four that are apart and three that are near, the near ones come last
    assert [c.acquisition for c in pool.apart(7, 1)] == pytest.approx(
        [2.0, 3.0, 4.0, 5.0, 2.1, 2.2, 2.3]
    )


class Unsure(synthetic.CostModel):
    """Whatever is predicted, every other draw lowers what has the largest features by a lot."""

    def deviations(
        self, rows: torch.Tensor, mask: torch.Tensor, normals: torch.Tensor
    ) -> torch.Tensor:
        largest = (rows * mask.unsqueeze(-1)).sum(dim=(1, 2)).argmax()
        lowered = torch.zeros_like(normals)
        lowered[largest, ::2] = -100.0
        return lowered


def test_what_may_be_the_best_is_taken_beside_the_best_predicted() -> None:
    pool = selection.Pool(
        scoring.Scorer([synthetic.FakeSketch()], Unsure()), history_module.History()
    )
    pool.add(0, synthetic.FakeSketch().sample(64, seed=1).tolist(), selection.Source.SAMPLE)
    ranked = pool.ranked()
    drawn = pool.drawn(1.0, np.random.default_rng(0))
    assert sorted(c.key for c in drawn) == sorted(c.key for c in ranked)
    assert drawn[0] == ranked[0] and drawn[2:] == [c for c in ranked if c not in drawn[:2]]
    rows = pool.scorer.features(0, (), np.asarray([c.decisions for c in ranked], np.float64))
    assert drawn[1] == ranked[int(rows.sum(axis=(1, 2)).argmax())]
    rules = selection.SelectionOptions(random_share=0.0, structure_share=1.0, max_similar=99)
    for scale, expected in ((1.0, drawn[:2]), (0.0, ranked[:2])):
        options = dataclasses.replace(rules, draw_scale=scale)
        assert selection.select(pool, 2, options, np.random.default_rng(0)) == expected
    assert pool.drawn(0.0, np.random.default_rng(0)) == ranked
    assert not selection.Pool(pool.scorer, pool.past).drawn(1.0, np.random.default_rng(0))


def test_a_model_that_does_not_know_how_sure_it_is_has_no_deviations() -> None:
    sketches = [synthetic.FakeSketch(), synthetic.FakeSketch(extents=(64,), structural=(-1, 0))]
    rows = [sketch.sample(4, seed=2) for sketch in sketches]
    keys = [(index, tuple(row)) for index in (1, 0) for row in rows[index].tolist()]
    normals = np.random.default_rng(0).standard_normal((8, 3))
    plain = scoring.Scorer(sketches, synthetic.CostModel())
    np.testing.assert_array_equal(plain.deviations(keys, normals), 0.0)
    deviations = scoring.Scorer(sketches, Unsure()).deviations(keys, normals)
    assert deviations.shape == (8, 3) and (deviations == -100.0).sum() == 2


class LongCode:
    """A scorer of one sketch: all candidates as fast, code as long as the last tile says."""

    def __init__(self) -> None:
        self.sketches = [synthetic.FakeSketch()]

    def score(self, sketch_index: int, rows: Any, known: Any) -> scoring.Scores:
        build = build_time.BuildCost(100.0 * rows[:, 3], 1.0 * rows[:, 3])
        return scoring.Scores(np.zeros(len(rows)), build, np.asarray([str(r) for r in rows], "S"))

    def deviations(self, keys: Any, normals: Any) -> Any:
        return np.zeros_like(normals)

    def kind_of(self, sketch_index: int) -> FeatureKind:
        return self.sketches[sketch_index].formulas.kind


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_long_builds_must_promise_more(weight: float) -> None:
    options = selection.SelectionOptions(0.0, 0.0, 1.0, 99, weight, max_compile_s=math.inf)
    pool = selection.Pool(LongCode(), history_module.History(), options)
    rows = synthetic.FakeSketch().sample(64, seed=1)
    pool.add(0, rows.tolist(), selection.Source.SAMPLE)
    picks = selection.select(pool, 8, options, np.random.default_rng(0))
    statements = [100.0 * c.decisions[3] for c in picks]
    shortest = sorted(100.0 * c.decisions[3] for c in pool.candidates.values())[:8]
    assert (statements == shortest) == (weight > 0)
    assert all(c.score == 0.0 for c in picks)  # the prediction itself is not changed
    expected = [weight * math.log1p(s / build_time.FREE_STATEMENTS) for s in statements]
    assert [c.acquisition for c in picks] == pytest.approx(expected)


def test_what_takes_too_long_to_compile_waits() -> None:
    """`LongCode` compiles for as many seconds as its last tile says."""
    pool = selection.Pool(LongCode(), history_module.History())
    pool.add(0, synthetic.FakeSketch().sample(64, seed=1).tolist(), selection.Source.SAMPLE)
    limit = pool.options.max_compile_s
    assert pool.fallback and all(c.decisions[3] > limit for c in pool.fallback.values())
    assert all(c.decisions[3] <= limit for c in pool.candidates.values())
    picks = selection.select(pool, 64, pool.options, np.random.default_rng(0))
    n_short = len(pool.candidates)
    assert all(c.key in pool.candidates for c in picks[:n_short])
    assert {c.key for c in picks[n_short:]} == set(pool.fallback)


def test_failures_are_remembered_without_a_latency() -> None:
    past = history_module.History()
    a, b = Candidate(0, (1, 2)), Candidate(1, (1, 2))
    past.propose([a, b])
    past.record([(a, None), (b, 5.0), (b, None), (b, 7.0)])
    assert a.key in past and past.best(5) == [b.key] and past.measured[b.key] == 5.0
    assert not past.pending


def put(
    pool: selection.Pool,
    decisions: tuple[int, ...],
    structure: tuple[int, ...],
    score: float,
    sketch: int = 0,
    source: selection.Source = selection.Source.DESCENT,
) -> selection.Scored:
    made = selection.Scored(sketch, decisions, structure, score, source, score)
    pool.candidates[made.key] = made
    return made


def scored(pool: selection.Pool, n: int, structure: int, first: float, sketch: int = 0) -> None:
    for i in range(n):
        put(pool, (structure, *[i] * 4), (structure,), first + i, sketch)


def empty_pool() -> selection.Pool:
    sketches = [synthetic.FakeSketch(), synthetic.FakeSketch()]
    scorer = scoring.Scorer(sketches, synthetic.CostModel())
    return selection.Pool(scorer, history_module.History())


def test_selection_leaves_room_for_other_structures_and_chance() -> None:
    pool = empty_pool()
    scored(pool, 50, 0, 0.0)
    scored(pool, 50, 1, 100.0)
    picks = selection.select(pool, 20, selection.SelectionOptions(), np.random.default_rng(0))
    greedy = picks[:18]
    assert sum(c.structure == (0,) for c in greedy) == 11  # 60 % of 18, rounded up
    assert [c.score for c in greedy] == sorted(c.score for c in greedy)
    assert len({c.decisions for c in picks}) == 20
    everything = selection.SelectionOptions(random_share=0, structure_share=1.0)
    picks = selection.select(pool, 20, everything, np.random.default_rng(0))
    assert all(c.structure == (0,) for c in picks)


def test_selection_has_a_share_for_neighbours() -> None:
    pool = empty_pool()
    scored(pool, 50, 0, 0.0)
    near = put(pool, (7,) * 5, (0,), 999.0, source=selection.Source.NEIGHBOUR)
    options = selection.SelectionOptions(random_share=0.0)
    assert near in selection.select(pool, 10, options, np.random.default_rng(0))
    options = selection.SelectionOptions(random_share=0.0, neighbour_share=0.0)
    assert near not in selection.select(pool, 10, options, np.random.default_rng(0))


def test_selection_of_one_structure_is_not_capped() -> None:
    pool = empty_pool()
    scored(pool, 30, 0, 0.0)
    options = selection.SelectionOptions(random_share=0.0)
    picks = selection.select(pool, 10, options, np.random.default_rng(0))
    assert [c.score for c in picks] == list(range(10))


def test_a_structure_whose_candidates_fail_takes_less() -> None:
    variables = synthetic.FakeSketch(structural=(0, 1, 2)).variables

    def picked(n_failed: int, n_ran: int) -> int:
        pool = empty_pool()
        pool.scorer.sketches = [synthetic.FakeSketch(structural=(0, 1, 2))]
        scored(pool, 50, 0, 0.0)
        scored(pool, 50, 1, 100.0)
        scored(pool, 50, 2, 200.0)
        for i in range(n_failed + n_ran):
            decisions = (*[i] * (len(variables) - 1), 0)
            pool.past.measured[0, decisions] = None if i < n_failed else 10.0
        options = selection.SelectionOptions(random_share=0.0)
        picks = selection.select(pool, 20, options, np.random.default_rng(0))
        return sum(c.structure == (0,) for c in picks)

    assert picked(0, 4) == picked(0, 0) == 12  # 60 %
    assert picked(3, 0) == 3
    assert picked(3, 8) == 9


def test_near_copies_of_picks_wait() -> None:
    pool = empty_pool()
    for i in range(20):  # alike, and the best
        put(pool, (0, 0, 0, i), (), float(i))
    scored(pool, 20, 5, 100.0, sketch=1)
    options = selection.SelectionOptions(random_share=0.0, structure_share=1.0, max_similar=3)
    picks = selection.select(pool, 10, options, np.random.default_rng(0))
    assert sum(c.sketch_index == 0 for c in picks) == 3
    options = dataclasses.replace(options, max_similar=100)
    picks = selection.select(pool, 10, options, np.random.default_rng(0))
    assert sum(c.sketch_index == 0 for c in picks) == 10


def test_no_variant_takes_all_picks() -> None:
    """The two sketches of one program may not have more than its share, however good they are."""
    sketches = programs_of_a_task()
    pool = selection.Pool(
        scoring.Scorer(sketches, synthetic.CostModel()), history_module.History()
    )
    for index, first in ((0, 0.0), (1, 0.5), (2, 500.0)):
        for i in range(40):
            put(pool, (i,) * 5, (), first + i, index)
    options = selection.SelectionOptions(random_share=0.0)
    picks = selection.select(pool, 20, options, np.random.default_rng(0))
    assert [c.sketch_index for c in picks].count(2) == 3
    all_of_one = selection.SelectionOptions(random_share=0.0, variant_share=1.0)
    picks = selection.select(pool, 20, all_of_one, np.random.default_rng(0))
    assert [c.sketch_index for c in picks].count(2) == 0
