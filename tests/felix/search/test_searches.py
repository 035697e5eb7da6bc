"""The searches, on sketches with a known optimum: legal, new, deterministic, resumable, good."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.support.searches import baselines
from felix import errors
from felix.search import base, descent, gradient, scoring, selection
from felix.search.interface import Candidate
from tests.support import share, synthetic
from tests.support.synthetic import gradient_search, two_sketches

torch.set_num_threads(1)
SEARCHES = ["local", "gradient", "evolutionary", "random"]
#: As from samples that nothing has polished.
LONG = descent.DescentOptions(steps=60, hot=0.5, learning_rate=0.2)


def make(kind: str, sketches: list[synthetic.FakeSketch], seed: int = 0) -> base.BaseSearch:
    model = synthetic.CostModel()
    if kind == "local":
        options = gradient.GradientOptions(n_structures=0)
        return gradient.GradientSearch(sketches, model, options, seed)
    if kind == "gradient":
        options = gradient.GradientOptions(descent=LONG)
        return gradient.GradientSearch(sketches, model, options, seed)
    if kind == "evolutionary":
        sizes = baselines.EvolutionOptions(population=64)
        return baselines.EvolutionarySearch(sketches, model, sizes, seed)
    return baselines.RandomSearch(sketches, model, seed)


def measured(
    sketches: list[synthetic.FakeSketch], candidates: list[Candidate]
) -> list[tuple[Candidate, float]]:
    """With the latencies that the cost model, which is right, predicts."""
    scorer = scoring.Scorer(sketches, synthetic.CostModel())

    def true_us(candidate: Candidate) -> float:
        row = np.asarray([candidate.decisions], np.int64)
        return float(np.exp(min(50.0, scorer.predict(candidate.sketch_index, row)[0])))

    return [(each, true_us(each)) for each in candidates]


@pytest.mark.parametrize("kind", SEARCHES)
def test_candidates_are_new_legal_and_deterministic(kind: str) -> None:
    sketches = two_sketches()
    search, again = make(kind, sketches, 3), make(kind, two_sketches(), 3)
    scorer = scoring.Scorer(sketches, synthetic.CostModel())
    proposed = set()
    for _ in range(3):
        candidates = search.ask(12)
        assert candidates == again.ask(12)
        assert len(candidates) == 12
        for candidate in candidates:
            assert candidate.key not in proposed
            proposed.add(candidate.key)
            row = np.asarray([candidate.decisions], np.int64)
            assert scorer.legal(candidate.sketch_index, row)[0]
            variables = sketches[candidate.sketch_index].variables
            assert all(v in var.domain for v, var in zip(row[0], variables, strict=True))
        results = measured(sketches, candidates)
        search.tell(results)
        again.tell(results)
    assert make(kind, two_sketches(), 4).ask(12) != make(kind, two_sketches(), 3).ask(12)


@pytest.mark.parametrize("kind", ["local", "gradient"])
def test_the_known_optimum_is_found(kind: str) -> None:
    """exp(0) us is the optimum of sketch 0 apart from the product and its structural value."""
    sketches = [synthetic.FakeSketch(structural=(-1, 0, 2))]
    search = make(kind, sketches)
    best = np.inf
    for _ in range(3):
        results = measured(sketches, search.ask(8))
        search.tell(results)
        best = min(best, *(latency_us for _, latency_us in results))
    # the unconstrained optimum 8 * 2 * 16 * 4 is twice 512: each axis must halve one part
    assert best <= np.exp(-1.0 + 2 * np.log(2) ** 2) * 1.01


@pytest.mark.parametrize("kind", ["local", "gradient"])
def test_fewer_rounds_are_needed_than_by_chance(kind: str) -> None:
    def best_after(kind: str) -> float:
        sketches = [synthetic.FakeSketch(extents=(512, 512, 1024))]
        search = make(kind, sketches)
        latencies_us = []
        for _ in range(2):
            results = measured(sketches, search.ask(8))
            latencies_us += [latency_us for _, latency_us in results]
            search.tell(results)
        return min(latencies_us)

    assert best_after(kind) < 0.5 * best_after("random")


def test_predictions_belong_to_their_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where illegal candidates were left out between them."""
    legal, are_all = scoring.Scorer.legal, []

    def noted(self: scoring.Scorer, *arguments: Any) -> Any:
        found = legal(self, *arguments)
        are_all.append(found.all())
        return found

    monkeypatch.setattr(scoring.Scorer, "legal", noted)
    sketches = [synthetic.FakeSketch(capacity=32)]
    search = make("gradient", sketches)
    search.ask(8)  # warm-up
    candidates = search.ask(24)
    assert not all(are_all)
    for candidate, latency_us in measured(sketches, candidates):
        assert candidate.predicted_us == pytest.approx(latency_us, rel=1e-4)


def test_copies_of_what_was_proposed_wait() -> None:
    """Widths 1 and 2 give the synthetic sketch equal features, and so do 3 and 4."""

    def fingerprints(search: base.BaseSearch, candidates: list[Candidate]) -> list[bytes]:
        rows = np.asarray([s.decisions for s in candidates], np.int64)
        return search.scorer.fingerprints(0, rows).tolist()

    search = make("gradient", [synthetic.FakeSketch(extents=(64,), parts=2)])
    proposed: list[bytes] = []
    for _ in range(3):  # 7 tilings, 4 unroll steps and 2 kinds of widths: 56 that differ
        candidates = search.ask(16)
        assert len(candidates) == 16
        proposed += fingerprints(search, candidates)
        search.tell(measured(search.sketches, candidates))
    assert len(set(proposed)) == 48
    while candidates := search.ask(16):  # then the copies, until all are proposed
        proposed += fingerprints(search, candidates)
    assert len(proposed) == 112 and len(set(proposed)) == 56


@pytest.mark.parametrize("kind", SEARCHES)
def test_nothing_is_proposed_twice(kind: str) -> None:
    """A history that is still empty counts, too."""
    sketches = [synthetic.FakeSketch(extents=(12,), parts=2, with_choices=False)]
    search = make(kind, sketches)
    empty = search.history
    first = search.ask(3)
    assert search.history is empty and all(s.key in empty for s in first)
    keys = [s.key for s in first]
    for _ in range(4):
        keys += [s.key for s in search.ask(3)]
    assert len(keys) == len(set(keys)) == 6  # 12 in two parts: all there are
    assert search.ask(3) == []


def test_equal_decisions_of_two_sketches_are_two_candidates() -> None:
    sketches = [
        synthetic.FakeSketch(extents=(4,), parts=2, with_choices=False, index=i) for i in range(2)
    ]
    for kind in SEARCHES:
        candidates = make(kind, sketches).ask(10)
        assert len(candidates) == 6
        assert {s.sketch_index for s in candidates} == {0, 1}


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_resumed_search_goes_on_as_if_never_stopped(kind: str) -> None:
    """The state survives JSON."""

    def many_structures() -> list[synthetic.FakeSketch]:
        return [synthetic.FakeSketch(structural=tuple(range(20))), *two_sketches()]

    sketches = many_structures()
    search = make(kind, sketches, 5)
    for _ in range(2):
        candidates = search.ask(6)
        search.tell(measured(sketches, candidates[:4]))
    stored = json.loads(json.dumps(search.state_dict()))
    resumed = make(kind, many_structures(), 99)
    resumed.load_state_dict(stored)
    assert resumed.state_dict() == search.state_dict()
    assert resumed.ask(6) == search.ask(6)


@pytest.mark.parametrize("kind", ["local", "gradient"])
def test_a_state_of_an_earlier_version_goes_on(kind: str) -> None:
    sketches = two_sketches()
    row, other = ([8, 1, 16, 4, 8, 2, 16, 4, 64, 1, -1], [4, 2, 16, 4, 8, 2, 16, 4, 64, 1, 2])
    stored = {
        "kind": kind,
        "seed": 3,
        "round": 1,
        "history": {"format": 1, "measured": [[0, row, 7.5]], "pending": [[0, other]]},
        "structures": [[0, [-1]], [0, [2]], [1, []]],
        "samples": [[i, sketch.sample(8, 1).tolist()] for i, sketch in enumerate(sketches)],
    }
    search = make(kind, sketches)
    search.load_state_dict(json.loads(json.dumps(stored)))
    assert search.state_dict() == stored
    candidates = search.ask(12)
    assert len(candidates) == 12 and bool(search.descent_steps) == (kind == "gradient")
    assert not {s.key for s in candidates} & {(0, tuple(row)), (0, tuple(other))}


@pytest.mark.parametrize(
    ("is_gpu", "n_structures", "chosen", "expected"),
    [
        (True, 2, None, selection.DRAW_SCALE),
        (True, 0, None, selection.DRAW_SCALE),
        (False, 0, None, selection.DRAW_SCALE),
        (False, 2, None, 0.0),
        (False, 2, 0.5, 0.5),
    ],
)
def test_a_descending_search_on_a_cpu_takes_no_draws(
    is_gpu: bool,
    n_structures: int,
    chosen: float | None,
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scales: list[float] = []

    def drawn(pool: selection.Pool, scale: float, rng: np.random.Generator) -> Any:
        scales.append(scale)
        return pool.ranked()

    monkeypatch.setattr(selection.Pool, "drawn", drawn)
    monkeypatch.setattr(synthetic.FakeSketch, "is_gpu", is_gpu)
    rules = selection.SelectionOptions(draw_scale=chosen)
    options = gradient.GradientOptions(
        n_structures=n_structures, selection=rules, warm_selection=rules
    )
    search = gradient.GradientSearch(two_sketches(), synthetic.CostModel(), options)
    assert search.ask(4) and search.ask(4)
    assert scales == ([expected] * 2 if expected else [])


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "other"},
        {"structures": 1},
        {"round": "x"},
        {"history": {}},
        {"history": {"format": 0}},
        {"history": {"format": 1, "measured": [[0, [1], -3]], "pending": []}},
    ],
)
def test_a_damaged_state_is_one_clear_error(damage: dict) -> None:
    search = make("gradient", two_sketches())
    with pytest.raises(errors.RecordError):
        search.load_state_dict({**search.state_dict(), **damage})


def test_lost_measurements_can_be_forgotten() -> None:
    search = make("random", two_sketches())
    first = search.ask(4)
    search.forget_pending()
    assert not any(s.key in search.history for s in first)


@pytest.mark.parametrize(("n_new_structures", "n_rounds"), share.of([(2, 4), (1, 10)], 1))
def test_structures_change_between_rounds(n_new_structures: int, n_rounds: int) -> None:
    sketches = [synthetic.FakeSketch(structural=tuple(range(-1, 8)))]
    options = gradient.GradientOptions(descent=LONG, n_new_structures=n_new_structures)
    search = gradient.GradientSearch(sketches, synthetic.CostModel(), options, 0)
    for _ in range(n_rounds):
        search.tell(measured(sketches, search.ask(8)))
    structures = {decisions[-1] for _, decisions in search.history.measured}
    assert len(structures) > 2
    assert -1 in structures


@pytest.mark.parametrize("kind", ["local", "gradient", "evolutionary"])
def test_a_round_compiles_few_new_structures(kind: str) -> None:
    sketches = [synthetic.FakeSketch(structural=tuple(range(-1, 60)))]
    search = make(kind, sketches)
    limit = search.options.n_new_structures
    if isinstance(search, gradient.GradientSearch):
        limit = max(limit, 24 // len(sketches[0].variables))
    for round_number in range(1, 4):
        assert search.ask(8)
        assert sum(call != "is_applicable" for call in sketches[0].calls) <= limit * round_number


def test_small_formulas_are_compiled_for_more_structures() -> None:
    def compiled(variables: int) -> int:
        sketch = synthetic.FakeSketch(structural=tuple(range(-1, 60)))
        search = gradient_search([sketch], new_structure_variables=variables)
        assert search.ask(8)
        return sum(call != "is_applicable" for call in sketch.calls)

    n_variables = len(synthetic.FakeSketch(structural=(-1, 0)).variables)
    assert compiled(0) == compiled(2 * n_variables - 1) == 1
    assert compiled(3 * n_variables) == 3


def test_structures_that_tvm_refuses_are_not_proposed() -> None:
    sketch = synthetic.FakeSketch(structural=(-1, 0, 1), refused=(0,))
    search = gradient_search([sketch], n_new_structures=3)
    structures = [s.decisions[-1] for _ in range(3) for s in search.ask(8)]
    assert set(structures) == {-1, 1}
    assert sketch.calls.count("is_applicable") <= 2 + scoring.CHECKED_ROWS


#: Descents that leave much to polish.
SHORT = gradient.GradientOptions(
    n_before=0,
    n_seeds=2,
    n_roundings=1,
    n_warm_rounds=0,
    descent=dataclasses.replace(LONG, steps=4, record_every=4),
)


@pytest.mark.parametrize(
    ("option", "others"), [("n_polish", SHORT), ("n_warm_polish", gradient.GradientOptions())]
)
def test_polishing_finds_what_others_missed(option: str, others: gradient.GradientOptions) -> None:
    """What rounding missed, and in a first round what samples did."""

    def best(generations: int) -> float:
        options = dataclasses.replace(others, **{option: generations})
        sketch = synthetic.FakeSketch(extents=(512, 512, 512))
        search = gradient.GradientSearch([sketch], synthetic.CostModel(), options, 1)
        return min(each.predicted_us or math.inf for each in search.ask(8))

    assert best(8) < 0.5 * best(0)


def test_warm_up_has_its_own_selection() -> None:
    def spread(random_share: float) -> float:
        chosen = selection.SelectionOptions(random_share=random_share)
        search = gradient_search(two_sketches(), warm_selection=chosen, n_new_structures=2)
        candidates = search.ask(16)
        return float(np.std([math.log(s.predicted_us or 1.0) for s in candidates]))

    assert spread(1.0) > 2 * spread(0.0)


@pytest.mark.slow("searches a space of many sketches")
def test_only_a_few_sketches_are_sampled_again_and_a_resumed_search_has_the_rest() -> None:
    def sampled(n_resampled: int) -> list[int]:
        sketches = [synthetic.FakeSketch(extents=(64 * k, 256)) for k in (1, 2, 3, 4)]
        search = gradient_search(sketches, n_resampled=n_resampled)
        counts = []
        for _ in range(2):
            before = {i: rows for i, rows in search._samples.items()}
            search.ask(4)
            counts.append(sum(before.get(i) is not rows for i, rows in search._samples.items()))
        alike = [synthetic.FakeSketch(extents=(64 * k, 256)) for k in (1, 2, 3, 4)]
        resumed = gradient_search(alike, n_resampled=n_resampled)
        resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
        assert resumed.ask(4) == search.ask(4)
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
    assert [s.decisions for s in search.ask(4)] == [()]
    assert search.ask(4) == []
