"""Rules of selection among measured schedules: what is chosen, and the figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import selection_replay as replay
from costmodel.data import dataset as datasets
from costmodel.data import features as task_features
from costmodel.online import finetune, gaussian_process
from felix.search import selection
from tests.support import synthetic

N = 40


def task(seed: int = 0) -> task_features.TaskData:
    """40 schedules of two features; the model reads the first, the latency has both and one is
    missing."""
    rows = np.random.default_rng(seed).normal(size=(N, 1, 2)).astype(np.float32)
    ln_latency = rows[:, 0].sum(axis=1).astype(np.float64)
    ln_latency[3] = math.nan
    workload = datasets.Workload("key", "name", "gemm", None, None, 1, 1)
    return task_features.TaskData(
        workload, "{}", "gpu", rows, np.ones((N, 1), bool), ln_latency, (None,) * N, ("",) * N
    )


def test_the_first_round_has_the_lowest_predictions_and_no_schedule_is_chosen_twice() -> None:
    given, model = task(), synthetic.CostModel()
    ran = given.only(np.flatnonzero(given.measured))
    ln_over_best = replay.replay(model, given, replay.Rule(0.0, 0.0, 0.0), seed=0)
    assert len(ln_over_best) == sum(replay.ROUNDS)
    first = np.argsort(ran.rows[:, 0, 0], kind="stable")[:8]
    lowest = np.minimum.accumulate(ran.ln_latency[first] - ran.ln_latency.min())
    assert ln_over_best[:8] == pytest.approx(lowest.tolist())
    assert ln_over_best == sorted(ln_over_best, reverse=True) and ln_over_best[-1] >= 0
    # of as many candidates as schedules the best is one
    few = given.only(np.arange(25))
    assert replay.replay(model, few, replay.Rule(), seed=0)[-1] == pytest.approx(0)


def test_what_is_chosen_follows_from_the_seed() -> None:
    given, by_chance = task(1), replay.Rule(0.0, 1.0, 1.0)
    model = gaussian_process.Corrector(synthetic.CostModel()).for_task(0)
    one, again, other = (replay.replay(model, given, by_chance, seed) for seed in (0, 0, 1))
    assert one == again != other
    orders = [
        replay.ranked(model, given, 4.0, np.random.default_rng(seed)).tolist()
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_the_lowest_and_draws_go_first_and_all_others_follow_by_prediction() -> None:
    given = task().only(np.arange(3))
    model = finetune.OffsetModel(synthetic.CostModel(), 0.0)

    class Sure(torch.nn.Module):
        """The last schedule is lowest in the first draw; no other differs."""

        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            predicted: torch.Tensor = model(rows, mask)
            return predicted

        def deviations(
            self, rows: torch.Tensor, mask: torch.Tensor, normals: torch.Tensor
        ) -> torch.Tensor:
            assert normals.shape == (3, selection.N_DRAWS)
            deviations = torch.zeros(normals.shape, dtype=torch.float64)
            deviations[worst, 0] = -100.0
            return deviations

    order = np.argsort(given.rows[:, 0, 0]).tolist()
    worst = order[-1]
    rng = np.random.default_rng(0)
    assert replay.ranked(Sure(), given, 0.0, rng).tolist() == order
    assert replay.ranked(Sure(), given, 1.0, rng).tolist() == [order[0], worst, order[1]]
    assert replay.ranked(Sure(), given, 0.001, rng).tolist() == order
    unmeasured = gaussian_process.Corrector(synthetic.CostModel()).for_task(0)
    assert sorted(replay.ranked(unmeasured, given, 1.0, rng)) == [0, 1, 2]


def piece(rule: str, name: str, *ln_over_best: float) -> dict[str, Any]:
    seeds = [list(ln_over_best), list(ln_over_best)]
    return {"set": "cpu", "rule": rule, "name": name, "ln_over_best": seeds}


def test_rules_are_compared_on_the_same_workloads() -> None:
    pieces = [
        piece("mean", "a", 0.2, 0.2, 0.1, 0.1),
        piece("mean", "b", 0.4, 0.4, 0.3, 0.1),
        piece("draws-1", "a", 0.3, 0.3, 0.2, 0.0),
        piece("draws-1", "b", 0.3, 0.3, 0.2, 0.0),
    ]
    rows = replay.over_first(pieces)
    mean = [row for row in rows if row["rule"] == "mean"]
    draws = [row for row in rows if row["rule"] == "draws-1"]
    assert [row["after"] for row in draws] == list(replay.AFTER)
    assert {row["over"].mean for row in mean} == {1.0}
    assert [math.log(row["best"].mean) for row in draws] == pytest.approx([0.3, 0.3, 0.2, 0.0])
    expected = [math.log(row["over"].mean) for row in draws]
    assert expected == pytest.approx([0.0, 0.0, 0.0, -0.1])
    text = replay.render({"pieces": pieces})
    assert "draws-1" in text and "0.905 (0.905 to 0.905)" in text
    said = replay.says({"pieces": pieces, "part": "test"})
    assert said.startswith("On cpu, 2 test workloads, the lowest latency after 8 candidates")
    assert "`draws-1` 1.000" in said and "`mean` 1.000" not in said
