"""Searches whose cost model has errors that are drawn: the errors, one search, the figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import search_ablation
from benchmarks import search_simulated as simulated
from benchmarks.support import drawn_errors
from costmodel.models import analytic_time
from felix.features.kind import FeatureKind
from felix.search import scoring
from felix.templates import spec
from tests.support import synthetic
from tests.support.templates import naive_gemm


def errors(seed: int, noise: float = 0.0) -> drawn_errors.DrawnErrors:
    return drawn_errors.DrawnErrors(
        [synthetic.FakeSketch()], synthetic.CostModel(), 1.0, 0.3, noise, seed=seed
    )


def features(n: int) -> tuple[scoring.Scorer, Any]:
    sketch = synthetic.FakeSketch()
    scorer = scoring.Scorer([sketch], synthetic.CostModel())
    keys = [(0, tuple(row)) for row in sketch.sample(n, seed=4).tolist()]
    return scorer, scorer.padded_features(keys)


def test_errors_have_the_variance_of_their_process() -> None:
    scorer, rows = features(40)
    with torch.no_grad():
        values = torch.from_numpy(rows)
        predicted = scorer.model(values, scoring.row_mask(values)).double().numpy()
    drawn = np.array([errors(seed).ln_latency(rows) - predicted for seed in range(80)])
    assert np.abs(drawn.mean(axis=0)).max() < 0.3
    assert drawn.var(axis=0).mean() == pytest.approx(0.3, rel=0.25)
    noisy = np.array([errors(seed, 0.1).ln_latency(rows) - predicted for seed in range(80)])
    assert (noisy - drawn).var() == pytest.approx(0.1, rel=0.1)


def test_errors_are_of_the_features_and_the_seed() -> None:
    _, rows = features(8)
    again = np.concatenate([rows[::-1], rows[:1]])
    padded = np.pad(again, ((0, 0), (0, 3), (0, 0)))
    first = errors(1, 0.1).ln_latency(rows)
    np.testing.assert_allclose(errors(1, 0.1).ln_latency(padded), [*first[::-1], first[0]])
    assert np.abs(errors(2, 0.1).ln_latency(rows) - first).min() > 1e-6
    nudged = rows + np.float32(1e-4)
    assert np.abs(errors(1).ln_latency(nudged) - errors(1).ln_latency(rows)).max() < 0.05


def test_a_search_learns_half_of_a_round_a_round_later() -> None:
    sketches = [synthetic.FakeSketch()]
    search = search_ablation.make_search("felix", sketches, synthetic.CostModel(), 0)
    of_kind = {FeatureKind.TRACE: synthetic.CostModel()}
    run = simulated.Run(search, of_kind, {FeatureKind.TRACE: errors(0)})
    first = search.suggest(8)
    assert len(run.measure(first, later=0)) == 8
    assert {s.key for s in first} == set(search.history.measured)
    second = search.suggest(24)
    latencies_us = run.measure(second, later=12)
    assert set(search.history.pending) == {s.key for s in second[12:]}
    assert search.history.measured[second[3].key] == pytest.approx(latencies_us[3])
    run.measure(search.suggest(4), later=0)
    assert not search.history.pending and run.measure([], later=0) == []


def test_lowered_predictions_are_lower_where_less_was_measured() -> None:
    models = {FeatureKind.TRACE: synthetic.CostModel()}
    sketch = synthetic.FakeSketch()
    others = sketch.sample(40, seed=5)
    predicted, proposed = {}, []
    for lowered_by in (0.0, 1.0):
        search = search_ablation.make_search("mean", [sketch], models, 0)
        run = simulated.Run(search, models, {FeatureKind.TRACE: errors(0)}, lowered_by)
        first = search.suggest(8)
        proposed.append([each.key for each in first])
        run.measure(first, later=0)
        known = np.asarray([each.decisions for each in first])
        predicted[lowered_by] = [search.scorer.predict(0, rows) for rows in (known, others)]
    assert proposed[0] == proposed[1]
    lower = [mean - low for mean, low in zip(predicted[0.0], predicted[1.0], strict=True)]
    assert all((each > 0).all() for each in lower)
    assert lower[1].mean() > 1.5 * lower[0].mean()


@pytest.mark.parametrize(
    ("strategy", "kind", "lowered_by"),
    [
        ("mean", "local", 0.0),
        ("lower-bound", "local", 0.7),
        ("gradient", "gradient", 0.0),
        ("gradient-lower-bound", "gradient", 0.7),
    ],
)
def test_which_searches_have_lowered_predictions(
    strategy: str, kind: str, lowered_by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, float, float]] = []

    class Run(simulated.Run):
        def __init__(self, search: Any, models: Any, latencies: Any, lowered_by: float) -> None:
            made.append((search.kind, search.options.selection.draw_scale, lowered_by))
            super().__init__(search, models, latencies, lowered_by)

    monkeypatch.setattr(simulated, "Run", Run)
    monkeypatch.setattr(simulated, "ROUNDS", (4,))
    job = search_ablation.Job("traces", "one", strategy, 0, 0.0)
    simulated.piece([synthetic.FakeSketch()], {FeatureKind.TRACE: synthetic.CostModel()}, job)
    assert made == [(kind, 0.0, lowered_by)]


def test_each_kind_of_features_has_errors_and_a_correction_of_its_own() -> None:
    sketches = [synthetic.FakeSketch(), naive_gemm.sketch(index=1)]
    models = {
        FeatureKind.TRACE: synthetic.CostModel(),
        FeatureKind.TEMPLATE: analytic_time.AnalyticTime(spec.NAMES, "analytic_us"),
    }
    worlds = {
        kind: drawn_errors.DrawnErrors([sketch], models[kind], 1.0, 0.3, 0.01, seed=2)
        for kind, sketch in zip(models, sketches, strict=True)
    }
    run = simulated.Run(search_ablation.make_search("felix", sketches, models, 0), models, worlds)
    suggestions = run.search.suggest(12)
    suggestions = sorted(suggestions, key=lambda each: each.decisions)  # kinds in turns
    latencies_us = run.measure(suggestions, later=0)
    assert {each.sketch_index for each in suggestions} == {0, 1}
    for each, latency_us in zip(suggestions, latencies_us, strict=True):
        world = worlds[list(models)[each.sketch_index]]
        alone = world.ln_latency(run.search.scorer.padded_features([each.key]))
        assert math.log(latency_us) == pytest.approx(alone[0])
        corrected = run.search.scorer.predict(each.sketch_index, np.asarray([each.decisions]))
        assert corrected[0] == pytest.approx(alone[0], abs=0.5)
    assert set(run.search.model) == set(models)


def test_no_two_searches_are_alike() -> None:
    made = [
        search_ablation.make_search(name, [synthetic.FakeSketch()], synthetic.CostModel(), 0)
        for name in simulated.STRATEGIES
        if name not in simulated.LOWERED  # others on lowered predictions
    ]
    assert all(
        (a.kind, a.options) != (b.kind, b.options)
        for number, a in enumerate(made)
        for b in made[:number]
    )


@pytest.mark.parametrize("set_name", search_ablation.SETS)
def test_the_errors_of_every_set_are_known(set_name: str) -> None:
    for kind in search_ablation.kinds_of(set_name):
        assert all(0 < value < 100 for value in simulated.errors_of(set_name, kind))


@pytest.mark.parametrize("strategy", simulated.STRATEGIES)
def test_every_search_finds_faster_schedules_than_chance(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "errors_of", lambda *_: (1.0, 0.2, 0.0025))
    job = search_ablation.Job("traces", "one", strategy, 3, 0.0)
    sketch, model = synthetic.FakeSketch(extents=(512, 197, 64)), synthetic.CostModel()
    piece = simulated.piece([sketch], {FeatureKind.TRACE: model}, job)
    assert len(piece["best_us"]) == len(piece["cpu_s"]) == len(simulated.ROUNDS)
    assert piece["best_us"] == sorted(piece["best_us"], reverse=True)
    scorer = scoring.Scorer([sketch], model)
    drawn = scorer.padded_features([(0, tuple(r)) for r in sketch.sample(72, seed=1).tolist()])
    world = drawn_errors.DrawnErrors([sketch], model, 1.0, 0.2, 0.0025, seed=3)
    assert 0 < piece["best_us"][-1] < 0.7 * math.exp(world.ln_latency(drawn).min())


def piece(strategy: str, name: str, seed: int, *best_us: float) -> dict[str, Any]:
    return {
        "set": "traces",
        "name": name,
        "strategy": strategy,
        "seed": seed,
        "best_us": list(best_us),
        "cpu_s": [0.5] * 4,
    }


def test_latencies_are_compared_with_felix_s() -> None:
    pieces = [
        piece(strategy, name, seed, 8 * ratio, 4 * ratio, 2 * ratio, ratio)
        for strategy, ratio in (("felix", 1.0), ("mean", 1.25))
        for name in ("a", "b")
        for seed in (0, 1)
    ]
    alone = piece("mean", "c", 0, 1.0, 1.0, 1.0, 1.0)  # felix has no such task
    felix, mean = simulated.over_felix([*pieces, alone])
    assert [ratio.mean for ratio in felix["ratios"]] == pytest.approx([1.0] * 4)
    assert [ratio.mean for ratio in mean["ratios"]] == pytest.approx([1.25] * 4)
    assert (mean["searches"], mean["cpu_s"]) == (5, 2.0)
    data = {"pieces": pieces}
    assert "after 72" in simulated.render(data) and "mean" in simulated.render(data)
    said = simulated.says(data)
    assert said.startswith("On traces, after 72 candidates") and "`mean` 1.250" in said
