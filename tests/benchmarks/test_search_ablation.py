"""The ablation of the search: its figures from known searches, and one task searched."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import merged_descent
from benchmarks import search_ablation as ablation
from benchmarks.support import ablation_table, gradients
from felix.autodiff import torch_function
from felix.features.kind import FeatureKind
from felix.search import descent, interface, rounding, scoring
from tests.support import synthetic


def piece(strategy: str, name: str, seed: int, *best_us: float) -> dict[str, Any]:
    """A search whose rounds end after 0.5, 1.5, 2.5, ... CPU seconds."""
    after_s = [0.5 + n for n in range(len(best_us))]
    return {
        "set": "traces",
        "name": name,
        "strategy": strategy,
        "seed": seed,
        "sketches": 1,
        "after_s": after_s,
        "best_us": list(best_us),
    }


PIECES = [
    piece(strategy, name, seed, 4 * end_us, 2 * end_us, end_us)
    for strategy, end_us in (("felix", 10.0), ("descent", 11.0), ("rank", 20.0))
    for name in ("a", "b")
    for seed in (0, 1)
]


@pytest.mark.parametrize(("cpu_s", "best_us"), [(0.1, 40.0), (1.0, 40.0), (2.0, 20.0), (9, 10.0)])
def test_the_best_is_of_rounds_that_ended(cpu_s: float, best_us: float) -> None:
    assert ablation_table.best_by(PIECES[0], cpu_s) == best_us


def test_shares_and_ratios() -> None:
    rows = {(r["strategy"], r["budget_s"]): r for r in ablation_table.summary(PIECES, 4.0)}
    assert {budget_s for _, budget_s in rows} == {1.0, 2.0, 4.0}
    felix, still = rows["felix", 4.0], rows["descent", 4.0]
    assert (felix["share"], felix["ahead"], felix["rounds"]) == pytest.approx((1.0, 1.0, 3.0))
    assert (still["share"], still["ahead"]) == pytest.approx((10 / 11, 1.1))
    assert still["interval"] == pytest.approx([1.1, 1.1])  # all tasks and seeds say the same
    assert rows["felix", 1.0]["share"] == pytest.approx(1 / 4)


def test_an_interval_covers_what_tasks_say() -> None:
    pieces = [
        piece(strategy, name, 0, us)
        for name, ratio in (("a", 0.8), ("b", 1.0), ("c", 1.25))
        for strategy, us in (("felix", 10.0), ("rank", 10.0 * ratio))
    ]
    (row,) = [r for r in ablation_table.summary(pieces, 1.0) if r["strategy"] == "rank"]
    low, high = row["interval"]
    assert 0.8 <= low < row["ahead"] < high <= 1.25
    assert row["ahead"] == pytest.approx(math.exp((math.log(0.8) + math.log(1.25)) / 3))


def test_searches_are_compared_after_as_many_rounds() -> None:
    short = [piece("descent", "c", 0, 10.0, 5.0), piece("felix", "c", 0, 10.0, 10.0, 2.0)]
    every = ablation_table.at_equal_rounds([*PIECES, *short])
    assert {row["strategy"] for row in every} == {"descent", "rank"}
    rows = {row["rounds"]: row for row in every if row["strategy"] == "descent"}
    assert set(rows) == {2, 3}  # none has four rounds
    assert (rows[2]["searches"], rows[3]["searches"]) == (5, 4)
    assert rows[3]["ahead"].mean == pytest.approx(1.1)
    two = (2 * math.log(1.1) + math.log(0.5)) / 3  # a mean over tasks
    assert rows[2]["ahead"].mean == pytest.approx(math.exp(two))
    assert "After as many rounds" in ablation_table.render(
        {"summary": ablation_table.summary(PIECES, 4.0), "pieces": PIECES}
    )


def test_the_page_names_the_best_searches_with_and_without_gradients(
    tmp_path: pathlib.Path,
) -> None:
    data = {"summary": ablation_table.summary(PIECES, 4.0), "pieces": PIECES}
    said = ablation_table.says(data)
    assert "search with gradients (`descent`) is 1.100 times felix's (1.100 to 1.100)" in said
    assert "search else without gradients (`rank`) is 2.000 times felix's" in said
    assert "traces, 2 tasks:" in ablation_table.render(data)
    ablation_table.picture({**data, "cpu_s": 4.0}, tmp_path / "ablation.svg")
    text = (tmp_path / "ablation.svg").read_text()
    assert "<svg" in text and text.count("stroke-width: 2.5") >= 1


@pytest.mark.parametrize("set_name", ["traces", "templates"])
def test_searches_of_one_task(set_name: str) -> None:
    name = {"traces": "softmax-odd", "templates": "scores-197"}[set_name]
    of_felix = ablation.strategies_of("templates")
    jobs = [ablation.Job(set_name, name, strategy, 0, 0.01) for strategy in of_felix]
    pieces = ablation.of_task(jobs, 2)
    assert [each["strategy"] for each in pieces] == of_felix
    assert {*ablation.strategies_of("traces")} - {*of_felix} == {"evolution-24", "evolution-64"}
    for each in pieces:
        assert each["after_s"][0] > 0.01 and 0 < each["best_us"][0] < math.inf


@pytest.mark.parametrize(
    ("strategy", "sizes"), [("felix", [8, 24]), ("evolution-24", [24]), ("evolution-64", [64])]
)
def test_rounds_are_as_large_as_a_strategy_has_them(
    strategy: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Search:
        def suggest(self, count: int) -> list[Any]:
            asked.append(count)
            return [interface.Suggestion(0, (1,), 5.0)] if len(asked) < 3 else []

        def update(self, results: Any) -> None: ...

    monkeypatch.setattr(ablation, "make_search", lambda *_: Search())
    found = ablation.piece([], None, ablation.Job("traces", "gemm-vit", strategy, 0, 1e9))
    assert asked == [sizes[0], sizes[-1], sizes[-1]] and found["best_us"] == [5.0, 5.0]


def test_what_the_results_file_has_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is searched: with `--only` another task it would be."""
    path = tmp_path / "ablation.json"
    known = [piece("felix", "gemm-vit", seed, 2.0, 1.0) for seed in (0, 1)]
    path.write_text(json.dumps({"cpu_s": 4.0, "pieces": known}))
    options = ["--only", "gemm-vit", "--strategies", "felix", "--set", "traces", "--keep"]
    options += ["--seeds", "2", "--cpu-s", "4", "--out", str(path)]
    monkeypatch.setattr("sys.argv", ["search_ablation.py", *options])
    assert ablation.main() == 0
    data = json.loads(path.read_text())
    assert data["pieces"] == known
    assert [row["budget_s"] for row in data["summary"]] == [1.0, 2.0, 4.0]
    assert ablation._kept(path, 8.0) == []


@pytest.mark.parametrize(
    "strategy", ["gradient", "first-order", "langevin", "preconditioned", "steepest"]
)
def test_searches_with_gradients_get_below_ranked_samples(strategy: str) -> None:
    def lowest_us(name: str) -> float:
        sketches = [synthetic.FakeSketch(extents=(512, 197, 64))]
        search, best_us = ablation.make_search(name, sketches, synthetic.CostModel(), 1), []
        for count in (8, 24, 24):
            suggestions = search.suggest(count)
            best_us += [s.predicted_us for s in suggestions]
            search.update([(s, synthetic.Result(s.predicted_us)) for s in suggestions])
        return float(min(best_us))

    assert lowest_us(strategy) < 0.7 * lowest_us("rank")


def test_draws_by_gradient_lie_lower_than_their_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "HEAT", 1.0)  # the fake's slopes are ten times a task's
    sketch = synthetic.FakeSketch()
    scorer = scoring.Scorer([sketch], {FeatureKind.TRACE: synthetic.CostModel()})
    drawing = gradients.LangevinDescent(scorer, descent.DescentOptions())
    seeds = sketch.sample(8, seed=1)
    (visited,) = drawing.run([descent.Entry(0, (), seeds)])
    assert len(visited.values) == gradients.N_DRAWS * len(seeds)
    assert len(np.unique(visited.values, axis=0)) > len(seeds)
    rounded, _ = rounding.Rounder(sketch.variables).round(visited.values, 1)
    drawn = scorer.predict(0, rounded.reshape(-1, rounded.shape[-1]))
    assert drawn.mean() < scorer.predict(0, seeds).mean() - 1.0


def test_a_descent_begins_at_the_temperature_of_the_steepest_slopes() -> None:
    asked: list[float] = []
    slopes = {0.05: 1.0, 0.15: 2.0, 0.5: 3.0, 1.5: 4.0}  # the steepest is not the default's

    class Known(gradients.SteepestDescent):
        def _slope(
            self,
            merged: descent.MergedProgram,
            starts: interface.Decisions,
            masks: Sequence[torch.Tensor],
            temperature: float,
        ) -> float:
            asked.append(temperature)
            return slopes[temperature]

    sketches = [synthetic.FakeSketch(), synthetic.FakeSketch(extents=(512, 197, 64))]
    scorer = scoring.Scorer(sketches, {FeatureKind.TRACE: synthetic.CostModel()})
    steepest = Known(scorer, descent.DescentOptions(steps=3))
    for index, times in ((0, 1), (0, 1), (1, 2)):  # once for each program
        steepest.run([descent.Entry(index, (), sketches[index].sample(4, seed=1))])
        assert steepest.steps[0].temperature == 1.5
        assert asked == list(gradients.FIRST_TEMPERATURES) * times


def test_slopes_are_those_of_the_smooth_prediction() -> None:
    sketch = synthetic.FakeSketch()
    scorer = scoring.Scorer([sketch], {FeatureKind.TRACE: synthetic.CostModel()})
    steepest = gradients.SteepestDescent(scorer, descent.DescentOptions())
    merged = steepest._merge(((0, ()),))
    starts = sketch.sample(3, seed=1)
    masks = [
        descent._mask([descent.Entry(0, (), starts)], block, scorer) for block in merged.blocks
    ]

    def cost(x: torch.Tensor) -> torch.Tensor:
        outputs = torch_function.smooth(merged.program, merged.space.decode(x), 0.5)
        return steepest._terms(merged, outputs, masks)[0].sum(dim=1)

    at, step = merged.space.project(merged.space.encode(starts)), 1e-3
    differences = []
    for column in range(at.shape[1]):
        moved = torch.zeros_like(at)
        moved[:, column] = step
        differences.append((cost(at + moved) - cost(at - moved)) / (2 * step))
    slopes = torch.stack(differences, dim=1) * merged.space.trainable
    expected = float(slopes.square().mean().sqrt())
    assert steepest._slope(merged, starts, masks, 0.5) == pytest.approx(expected, rel=0.02)
    assert expected > 0.1


def test_a_full_matrix_turns_steps_that_a_diagonal_does_not() -> None:
    """Slopes change across a valley along (1, 1), and are small along it: the matrix goes along
    it, the diagonal, which knows axes alone, hardly moves.
    """
    x, trainable = torch.zeros(1, 2, dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    full, plain = gradients.FullMatrixAdam(x, trainable), descent.Adam(x, trainable)
    along = {}
    for number in range(9):
        across = 5.0 * (-1) ** number
        slopes = torch.tensor([[0.1 + across, 0.1 - across]], dtype=torch.float64)
        for name, each in (("full", full), ("plain", plain)):
            a, b = each.step(slopes, 0.1)[0].tolist()
            along[name] = (-(a + b), abs(a - b))
    assert along["full"][0] > 5 * along["plain"][0] > 0
    assert along["full"][0] > along["full"][1]


def test_one_descent_of_several_tasks_has_the_entries_of_all() -> None:
    tasks = [[synthetic.FakeSketch()], synthetic.programs_of_a_task()]
    row = merged_descent._row(tasks, synthetic.CostModel(), 1)
    assert (row["tasks"], row["entries"]) == (2, 4)
    assert row["together_ms"] > 0 and row["apart_ms"] > 0
    large = {"descent_s": 1.5, "model_s": 1.25}
    said = merged_descent.render({"rows": [row], "large": large})
    assert "together / apart" in said
    assert "take 1.5 CPU seconds, the cost model alone 1.25." in said
