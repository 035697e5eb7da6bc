"""The searches, on sketches with a known optimum: legal, new, deterministic, resumable, good."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from felix import errors
from felix.search import build_time, descent, scoring, selection
from felix.search import history as history_module
from felix.search.interface import Suggestion
from felix.search.strategies import base, evolutionary, gradient, local, random
from tests.support import synthetic

torch.set_num_threads(1)
SEARCHES = ["local", "gradient", "evolutionary", "random"]


@dataclass(frozen=True)
class Result:
    latency_us: float | None


def make(kind: str, sketches: list[synthetic.FakeSketch], seed: int = 0) -> base.BaseSearch:
    model = synthetic.CostModel()
    if kind == "local":
        return local.LocalSearch(sketches, model, None, seed)
    if kind == "gradient":
        options = gradient.GradientOptions(descent=descent.DescentOptions(steps=60))
        return gradient.GradientSearch(sketches, model, options, seed)
    if kind == "evolutionary":
        options = evolutionary.EvolutionOptions(population=64)
        return evolutionary.EvolutionarySearch(sketches, model, options, seed)
    return random.RandomSearch(sketches, seed)


def true_us(sketches: list[synthetic.FakeSketch], suggestion: Suggestion) -> float:
    scorer = scoring.Scorer(sketches, synthetic.CostModel())
    row = np.asarray([suggestion.decisions], np.int64)
    return float(np.exp(min(50.0, scorer.predict(suggestion.sketch_index, row)[0])))


def two_sketches() -> list[synthetic.FakeSketch]:
    return [
        synthetic.FakeSketch(structural=(-1, 0, 2)),
        synthetic.FakeSketch(extents=(512, 197, 64)),
    ]


@pytest.mark.parametrize("kind", SEARCHES)
def test_suggestions_are_new_legal_and_deterministic(kind: str) -> None:
    sketches = two_sketches()
    search, again = make(kind, sketches, 3), make(kind, two_sketches(), 3)
    scorer = scoring.Scorer(sketches, synthetic.CostModel())
    proposed = set()
    for _ in range(3):
        suggestions = search.suggest(12)
        assert suggestions == again.suggest(12)
        assert len(suggestions) == 12
        for suggestion in suggestions:
            assert suggestion.key not in proposed
            proposed.add(suggestion.key)
            row = np.asarray([suggestion.decisions], np.int64)
            assert scorer.legal(suggestion.sketch_index, row)[0]
            variables = sketches[suggestion.sketch_index].variables
            assert all(v in var.domain for v, var in zip(row[0], variables, strict=True))
        results = [(s, Result(true_us(sketches, s))) for s in suggestions]
        search.update(results)
        again.update(results)
    assert make(kind, two_sketches(), 4).suggest(12) != make(kind, two_sketches(), 3).suggest(12)


@pytest.mark.parametrize("kind", ["local", "gradient"])
def test_the_known_optimum_is_found(kind: str) -> None:
    """exp(0) us is the optimum of sketch 0 apart from the product and its structural value."""
    sketches = [synthetic.FakeSketch(structural=(-1, 0, 2))]
    search = make(kind, sketches)
    best = np.inf
    for _ in range(3):
        results = [(s, Result(true_us(sketches, s))) for s in search.suggest(8)]
        search.update(results)
        best = min(best, *(r.latency_us for _, r in results))
    # the unconstrained optimum 8 * 2 * 16 * 4 is twice 512: each axis must halve one part
    assert best <= np.exp(-1.0 + 2 * np.log(2) ** 2) * 1.01


@pytest.mark.parametrize("kind", ["local", "gradient"])
def test_fewer_rounds_are_needed_than_by_chance(kind: str) -> None:
    def best_after(kind: str) -> float:
        sketches = [synthetic.FakeSketch(extents=(512, 512, 1024))]
        search = make(kind, sketches)
        latencies_us = []
        for _ in range(2):
            suggestions = search.suggest(8)
            latencies_us += [true_us(sketches, s) for s in suggestions]
            search.update([(s, Result(true_us(sketches, s))) for s in suggestions])
        return min(latencies_us)

    assert best_after(kind) < 0.5 * best_after("random")


def test_predictions_belong_to_their_candidates() -> None:
    """Also where illegal candidates were left out between them."""
    sketches = [synthetic.FakeSketch(capacity=32)]
    search = make("gradient", sketches)
    search.suggest(8)  # warm-up
    suggestions = search.suggest(24)
    assert search.statistics.n_legal < search.statistics.n_new
    for suggestion in suggestions:
        assert suggestion.predicted_us == pytest.approx(true_us(sketches, suggestion), rel=1e-4)


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
    scorer = scoring.Scorer([sketch], synthetic.CostModel())
    known: dict[bytes, float] = {}
    first = scorer.score(0, rows, known)
    n_features = len(set(first.fingerprints.tolist()))
    assert scorer.n_predictions == len(known) == n_features
    again = scorer.score(0, rows, known)
    assert scorer.n_predictions == n_features
    np.testing.assert_array_equal(again.ln_latency, first.ln_latency)
    scorer.score(0, rows)  # as after the model learned something
    assert scorer.n_predictions == 2 * n_features


def test_the_best_of_a_pool_are_the_first_of_its_ranking() -> None:
    pool = empty_pool()
    scored(pool, 9, structure=1, first=5.0)
    scored(pool, 9, structure=0, first=2.0)
    ranked = pool.ranked()
    assert pool.best(4) == ranked[:4]
    beside = {c.key for c in ranked[1:5]}
    assert pool.best(3, beside) == [ranked[0], *ranked[5:7]]


class LongCode:
    """A scorer of one sketch: all candidates as fast, code as long as the last tile says."""

    def __init__(self) -> None:
        self.sketches = [synthetic.FakeSketch()]

    def score(self, sketch_index: int, rows: Any, known: Any) -> scoring.Scores:
        build = build_time.BuildCost(100.0 * rows[:, 3], 1.0 * rows[:, 3])
        return scoring.Scores(np.zeros(len(rows)), build, np.asarray([str(r) for r in rows], "S"))


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


def test_copies_of_what_was_proposed_wait() -> None:
    """Widths 1 and 2 give the synthetic sketch equal features, and so do 3 and 4."""

    def fingerprints(search: base.ModelSearch, suggestions: list[Suggestion]) -> list[bytes]:
        rows = np.asarray([s.decisions for s in suggestions], np.int64)
        return search.scorer.fingerprints(0, rows).tolist()

    search = make("gradient", [synthetic.FakeSketch(extents=(64,), parts=2)])
    proposed: list[bytes] = []
    for _ in range(3):  # 7 tilings, 4 unroll steps and 2 kinds of widths: 56 that differ
        suggestions = search.suggest(16)
        assert len(suggestions) == 16
        proposed += fingerprints(search, suggestions)
        search.update([(s, Result(true_us(search.sketches, s))) for s in suggestions])
    assert len(set(proposed)) == 48
    while suggestions := search.suggest(16):  # then the copies, until all are proposed
        proposed += fingerprints(search, suggestions)
    assert len(proposed) == 112 and len(set(proposed)) == 56


@pytest.mark.parametrize("kind", SEARCHES)
def test_nothing_is_proposed_twice(kind: str) -> None:
    """A history that is still empty counts, too."""
    sketches = [synthetic.FakeSketch(extents=(12,), parts=2, with_choices=False)]
    search = make(kind, sketches)
    empty = search.history
    first = search.suggest(3)
    assert search.history is empty and all(s.key in empty for s in first)
    keys = [s.key for s in first]
    for _ in range(4):
        keys += [s.key for s in search.suggest(3)]
    assert len(keys) == len(set(keys)) == 6  # 12 in two parts: all there are
    assert search.suggest(3) == []


def test_equal_decisions_of_two_sketches_are_two_candidates() -> None:
    sketches = [synthetic.FakeSketch(extents=(4,), parts=2, with_choices=False, index=i)
                for i in range(2)]  # fmt: skip
    for kind in SEARCHES:
        suggestions = make(kind, sketches).suggest(10)
        assert len(suggestions) == 6
        assert {s.sketch_index for s in suggestions} == {0, 1}


def test_failures_are_remembered_without_a_latency() -> None:
    past = history_module.History()
    a, b = Suggestion(0, (1, 2)), Suggestion(1, (1, 2))
    past.propose([a, b])
    past.record([(a, Result(None)), (b, Result(5.0)), (b, Result(None)), (b, Result(7.0))])
    assert a.key in past and past.best(5) == [b.key] and past.measured[b.key] == 5.0
    assert not past.pending


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_resumed_search_goes_on_as_if_never_stopped(kind: str) -> None:
    """The state survives JSON."""

    def many_structures() -> list[synthetic.FakeSketch]:
        return [synthetic.FakeSketch(structural=tuple(range(20))), *two_sketches()]

    sketches = many_structures()
    search = make(kind, sketches, 5)
    for _ in range(2):
        suggestions = search.suggest(6)
        search.update([(s, Result(true_us(sketches, s))) for s in suggestions[:4]])
    stored = json.loads(json.dumps(search.state_dict()))
    resumed = make(kind, many_structures(), 99)
    resumed.load_state_dict(stored)
    assert resumed.state_dict() == search.state_dict()
    assert resumed.suggest(6) == search.suggest(6)


@pytest.mark.parametrize(
    "damage",
    [{"kind": "other"}, {"structures": 1}, {"round": "x"}, {"history": {}},
     {"history": {"format": 0}},
     {"history": {"format": 1, "measured": [[0, [1], -3]], "pending": []}}],
)  # fmt: skip
def test_a_damaged_state_is_one_clear_error(damage: dict) -> None:
    search = make("gradient", two_sketches())
    with pytest.raises(errors.RecordError):
        search.load_state_dict({**search.state_dict(), **damage})


def test_lost_measurements_can_be_forgotten() -> None:
    search = make("random", two_sketches())
    first = search.suggest(4)
    search.forget_pending()
    assert not any(s.key in search.history for s in first)


@pytest.mark.parametrize(("n_new_structures", "n_rounds"), [(2, 4), (1, 10)])
def test_structures_change_between_rounds(n_new_structures: int, n_rounds: int) -> None:
    sketches = [synthetic.FakeSketch(structural=tuple(range(-1, 8)))]
    options = gradient.GradientOptions(
        descent=descent.DescentOptions(steps=60), n_new_structures=n_new_structures
    )
    search = gradient.GradientSearch(sketches, synthetic.CostModel(), options, 0)
    for _ in range(n_rounds):
        search.update([(s, Result(true_us(sketches, s))) for s in search.suggest(8)])
    structures = {decisions[-1] for _, decisions in search.history.measured}
    assert len(structures) > 2
    assert -1 in structures


def scored(pool: selection.Pool, n: int, structure: int, first: float) -> None:
    for i in range(n):
        decisions = (structure, *[i] * 4)
        pool.candidates[(0, decisions)] = selection.Candidate(
            0, decisions, (structure,), first + i, selection.Source.DESCENT, first + i
        )


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
    near = selection.Candidate(0, (7,) * 5, (0,), 999.0, selection.Source.NEIGHBOUR, 999.0)
    pool.candidates[near.key] = near
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
        decisions = (0, 0, 0, i)
        pool.candidates[(0, decisions)] = selection.Candidate(
            0, decisions, (), float(i), selection.Source.DESCENT, float(i)
        )
    scored(pool, 20, 5, 100.0)
    options = selection.SelectionOptions(random_share=0.0, structure_share=1.0, max_similar=3)
    pool.candidates = {k: v for k, v in pool.candidates.items() if len(k[1]) == 4} | {
        (1, k[1]): dataclasses.replace(v, sketch_index=1)
        for k, v in pool.candidates.items() if len(k[1]) == 5
    }  # fmt: skip
    picks = selection.select(pool, 10, options, np.random.default_rng(0))
    assert sum(c.sketch_index == 0 for c in picks) == 3
    options = dataclasses.replace(options, max_similar=100)
    picks = selection.select(pool, 10, options, np.random.default_rng(0))
    assert sum(c.sketch_index == 0 for c in picks) == 10


@pytest.mark.parametrize("kind", ["local", "gradient", "evolutionary"])
def test_a_round_compiles_few_new_structures(kind: str) -> None:
    sketches = [synthetic.FakeSketch(structural=tuple(range(-1, 60)))]
    search = make(kind, sketches)
    limit = search.options.n_new_structures
    if isinstance(search, local.LocalSearch):
        limit = max(limit, 24 // len(sketches[0].variables))
    for round_number in range(1, 4):
        assert search.suggest(8)
        assert sum(call != "is_applicable" for call in sketches[0].calls) <= limit * round_number


def test_small_formulas_are_compiled_for_more_structures() -> None:
    def compiled(variables: int) -> int:
        sketch = synthetic.FakeSketch(structural=tuple(range(-1, 60)))
        search = _search([sketch], new_structure_variables=variables)
        assert search.suggest(8)
        return sum(call != "is_applicable" for call in sketch.calls)

    n_variables = len(synthetic.FakeSketch(structural=(-1, 0)).variables)
    assert compiled(0) == compiled(2 * n_variables - 1) == 1
    assert compiled(3 * n_variables) == 3


def test_structures_that_tvm_refuses_are_not_proposed() -> None:
    sketch = synthetic.FakeSketch(structural=(-1, 0, 1), refused=(0,))
    search = _search([sketch], n_new_structures=3)
    structures = [s.decisions[-1] for _ in range(3) for s in search.suggest(8)]
    assert set(structures) == {-1, 1}
    assert sketch.calls.count("is_applicable") <= 2 + scoring.CHECKED_ROWS


def test_polishing_finds_what_rounding_missed() -> None:
    def best(n_polish: int) -> float:
        options = gradient.GradientOptions(
            n_polish=n_polish, n_seeds=2, n_roundings=1, n_warm_rounds=0,
            descent=descent.DescentOptions(steps=4, record_every=4),
        )  # fmt: skip
        sketch = synthetic.FakeSketch(extents=(512, 512, 512))
        search = gradient.GradientSearch([sketch], synthetic.CostModel(), options, 1)
        return search.suggest(1)[0].predicted_us

    assert best(8) < 0.5 * best(0)


def test_only_the_gradient_search_descends(monkeypatch: pytest.MonkeyPatch) -> None:
    sketches, model = [synthetic.FakeSketch()], synthetic.CostModel()
    steps = descent.DescentOptions(steps=4)
    sizes = gradient.GradientOptions(n_warm_rounds=0, descent=steps)
    descending = gradient.GradientSearch(sketches, model, sizes, 1)
    assert len(descending.suggest(4)) == 4 and descending.descent_steps
    monkeypatch.delattr(descent, "MergedProgram")
    still = local.LocalSearch(sketches, model, local.LocalOptions(n_warm_rounds=0), 1)
    assert len(still.suggest(4)) == 4 and still.descent_steps == []


def test_torch_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        descend(steps=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def descend(capacity: int = 1024, **options: float) -> descent.Visited:
    sketch = synthetic.FakeSketch(capacity=capacity, extents=(512, 512))
    scorer = scoring.Scorer([sketch], synthetic.CostModel())
    runner = descent.Descent(scorer, descent.DescentOptions(**options))
    (visited,) = runner.run([descent.Entry(0, (), sketch.sample(8, seed=0))])
    return visited


def test_descent_lowers_the_prediction_and_stays_in_bounds() -> None:
    visited = descend(steps=150, record_every=50)
    assert visited.values.shape == (4 * 8, 10) and visited.predicted.shape == (4 * 8,)
    assert visited.predicted[-8:].mean() < 0.1 * visited.predicted[:8].mean()
    assert visited.values[:, :8].min() >= 1 - 1e-9
    np.testing.assert_allclose(visited.values[:, :4].prod(axis=1), 512)


def test_the_penalty_keeps_the_constraint() -> None:
    """The optimum wants 16 * 4 in the inner parts; the capacity allows 16."""
    free = descend(steps=200)
    held = descend(capacity=16, steps=200)
    assert np.median(free.values[-8:, 2] * free.values[-8:, 3]) > 40
    inner = held.values[-8:, 2] * held.values[-8:, 3]
    assert (inner < 16 * 1.1).all() and np.median(inner) > 12


def test_options_of_the_descent_change_it() -> None:
    base_line = descend(steps=20, record_every=20).predicted
    for option, value in [("learning_rate", 0.02), ("hot", 5.0), ("final_learning_rate", 0.2),
                          ("cold", 0.4)]:  # fmt: skip
        changed = descend(steps=20, record_every=20, **{option: value}).predicted
        assert not np.array_equal(changed, base_line), option
    paper = descend(steps=20, record_every=20, kernel="paper").predicted
    assert not np.array_equal(paper, base_line)


def test_all_entries_descend_in_one_program_as_they_would_alone() -> None:
    """Merging sketches changes the cost of a step, not where the seeds go."""
    sketches = two_sketches()
    scorer = scoring.Scorer(sketches, synthetic.CostModel())
    options = descent.DescentOptions(steps=30, record_every=30)
    rows = sketches[0].sample(20, seed=1)
    rows[:, -1] = 2
    entries = [descent.Entry(0, (2,), rows[:4]), descent.Entry(1, (), sketches[1].sample(3, 1))]
    together = descent.Descent(scorer, options).run(entries)
    for entry, visited in zip(entries, together, strict=True):
        (alone,) = descent.Descent(scorer, options).run([entry])
        np.testing.assert_allclose(visited.values, alone.values, rtol=1e-6)
        np.testing.assert_allclose(visited.predicted, alone.predicted, rtol=1e-4, atol=1e-4)


def programs_of_a_task() -> list[synthetic.FakeSketch]:
    """Two sketches of one program and one of a variant, in that order."""
    sketches = [synthetic.FakeSketch(extents=extents) for extents in ((64, 64), (32,), (16, 8))]
    sketches[2].variant = "split"
    return sketches


def test_no_variant_takes_all_picks() -> None:
    """The two sketches of one program may not have more than its share, however good they are."""
    sketches = programs_of_a_task()
    pool = selection.Pool(
        scoring.Scorer(sketches, synthetic.CostModel()), history_module.History()
    )
    for index, first in ((0, 0.0), (1, 0.5), (2, 500.0)):
        for i in range(40):
            score = first + i
            pool.candidates[(index, (i,) * 5)] = selection.Candidate(
                index, (i,) * 5, (), score, selection.Source.DESCENT, score
            )
    options = selection.SelectionOptions(random_share=0.0)
    picks = selection.select(pool, 20, options, np.random.default_rng(0))
    assert [c.sketch_index for c in picks].count(2) == 3
    all_of_one = selection.SelectionOptions(random_share=0.0, variant_share=1.0)
    picks = selection.select(pool, 20, all_of_one, np.random.default_rng(0))
    assert [c.sketch_index for c in picks].count(2) == 0


def test_variants_add_no_entries_to_a_descent() -> None:
    search = gradient.GradientSearch(programs_of_a_task(), synthetic.CostModel(), None, 0)
    entries = [
        descent.Entry(index, (), sketch.sample(2, seed=0))
        for index, sketch in enumerate(search.sketches)
    ]
    assert search._n_entries(entries) == 2
    assert search._n_entries(entries[:1]) == 1
    assert search._n_entries([]) == 1


def test_every_program_of_a_task_may_have_an_entry() -> None:
    sketches = programs_of_a_task()
    sketches[1].variant = "padded"
    search = gradient.GradientSearch(sketches, synthetic.CostModel(), None, 0)
    entries = [
        descent.Entry(index, (), sketch.sample(2, seed=0)) for index, sketch in enumerate(sketches)
    ]
    assert search._n_entries(entries) == 3


def test_rows_that_do_not_exist_are_masked() -> None:
    rows = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    assert scoring.row_mask(rows).tolist() == [[1.0, 0.0]]


def test_a_model_that_returns_nan_gradients_does_not_break_the_descent() -> None:
    class Broken(torch.nn.Module):
        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(rows[..., 0].sum(1) * 0.0)  # infinite slope times zero

    sketch = synthetic.FakeSketch()
    search = gradient.GradientSearch(
        [sketch], Broken(),
        gradient.GradientOptions(n_warm_rounds=0, descent=descent.DescentOptions(steps=5)),
    )  # fmt: skip
    assert len(search.suggest(4)) == 4


def _search(sketches: list[synthetic.FakeSketch], **sizes: Any) -> gradient.GradientSearch:
    options = gradient.GradientOptions(descent=descent.DescentOptions(steps=5), **sizes)
    return gradient.GradientSearch(sketches, synthetic.CostModel(), options, 1)


@pytest.mark.parametrize("n_warm_rounds", [0, 1, 2])
def test_warm_up_rounds_do_not_descend(n_warm_rounds: int) -> None:
    search = _search(two_sketches(), n_warm_rounds=n_warm_rounds)
    descended = []
    for _ in range(3):
        assert len(search.suggest(6)) == 6
        descended.append(bool(search.descent_steps))
    assert descended == [number >= n_warm_rounds for number in range(3)]


def test_warm_up_has_its_own_selection() -> None:
    def spread(random_share: float) -> float:
        chosen = selection.SelectionOptions(random_share=random_share)
        search = _search(two_sketches(), warm_selection=chosen, n_new_structures=2)
        suggestions = search.suggest(16)
        return float(np.std([math.log(s.predicted_us or 1.0) for s in suggestions]))

    assert spread(1.0) > 2 * spread(0.0)


def test_a_round_descends_the_most_promising_entries_and_one_at_random() -> None:
    def entries(n_entries: int) -> dict[int, float]:
        """Sketches that are descended, and their best predicted start."""
        sketches = [synthetic.FakeSketch(extents=(64 * k, 256)) for k in (1, 2, 3, 4)]
        search = _search(sketches, n_entries=n_entries, n_warm_rounds=0)
        best_starts: dict[int, float] = {}
        run = search._descent.run

        def note(entries: Any) -> Any:
            for e in entries:
                scores = search.scorer.predict(e.sketch_index, e.starts)
                best_starts[e.sketch_index] = float(scores.min())
            return run(entries)

        search._descent.run = note  # type: ignore[method-assign]
        search.suggest(4)
        return best_starts

    every = entries(100)
    assert len(every) == 4
    few = entries(3)
    assert len(few) == 3
    assert set(sorted(every, key=lambda index: every[index])[:2]) <= set(few)


def test_only_a_few_sketches_are_sampled_again_and_a_resumed_search_has_the_rest() -> None:
    def sampled(n_resampled: int) -> list[int]:
        sketches = [synthetic.FakeSketch(extents=(64 * k, 256)) for k in (1, 2, 3, 4)]
        search = _search(sketches, n_resampled=n_resampled)
        counts = []
        for _ in range(2):
            before = {i: rows for i, rows in search._samples.items()}
            search.suggest(4)
            counts.append(sum(before.get(i) is not rows for i, rows in search._samples.items()))
        resumed = _search([synthetic.FakeSketch(extents=(64 * k, 256)) for k in (1, 2, 3, 4)],
                          n_resampled=n_resampled)  # fmt: skip
        resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
        assert resumed.suggest(4) == search.suggest(4)
        return counts

    assert sampled(1) == [4, 1]
    assert sampled(4) == [4, 4]


def test_loading_the_package_does_not_load_torch() -> None:
    code = "import sys, felix.search; sys.exit('torch' in sys.modules or 'tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_sketch_is_an_error() -> None:
    with pytest.raises(ValueError, match="sketch"):
        make("random", [])


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_sketch_without_decisions_has_one_candidate(kind: str) -> None:
    import felix

    sketches = felix.sketches(felix.workloads.elementwise((16, 300), ("relu",), target="llvm"))
    bare = [sketch for sketch in sketches if not sketch.variables]
    assert bare, "this operator is expected to have a sketch that leaves nothing to decide"
    search = make(kind, bare[:1])  # type: ignore[arg-type]
    assert [s.decisions for s in search.suggest(4)] == [()]
    assert search.suggest(4) == []
