"""Scores of a cost model after a few measurements of each task."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from costmodel.data import dataset, features
from costmodel.online import corrected
from felix import errors


class Wrong(torch.nn.Module):
    """Ranks by the first feature, whatever the others do."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return rows[:, 0, 0]


def task(n: int, n_failed: int = 0) -> features.TaskData:
    """Latency follows the second feature, which the model does not read."""
    rng = np.random.default_rng(n)
    rows = rng.uniform(0.0, 3.0, (n + n_failed, 1, 2)).astype(np.float32)
    ln_latency = rows[:, 0, 1].astype(np.float64)
    ln_latency[n:] = np.nan
    workload = dataset.Workload("key", "w", "gemm", None, None, 1, 1)
    return features.TaskData(
        workload,
        "cuda",
        "gpu",
        rows,
        np.ones((n + n_failed, 1), bool),
        ln_latency,
        (None,) * n + ("build",) * n_failed,
        ("random",) * (n + n_failed),
    )


def test_measurements_correct_the_ranking_of_the_others() -> None:
    before, after = corrected.reports(Wrong(), [task(60, n_failed=3), task(80)], 16)
    assert [each.count for each in after.tasks] == [44, 64]
    assert [each.count for each in before.tasks] == [44, 64]
    assert after.overall.pairwise > before.overall.pairwise + 0.15
    assert after.overall.top5 > before.overall.top5


def test_tasks_with_few_schedules_are_left_out() -> None:
    before, _ = corrected.reports(Wrong(), [task(12), task(13)], 8)
    assert [each.count for each in before.tasks] == [5]
    with pytest.raises(errors.RecordError, match="no task to score"):
        corrected.reports(Wrong(), [task(12)], 8)


def test_half_of_the_measured_are_the_best_predicted() -> None:
    predicted = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 7.0])
    for seed in range(5):
        chosen = corrected._warm_up(predicted, 4, np.random.default_rng(seed))
        assert chosen[:2].tolist() == [1, 3] and len(set(chosen.tolist())) == 4


class Smooth(torch.nn.Module):
    """Reads the second feature, which is what the latency follows."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return rows[:, 0, 1]


@pytest.mark.parametrize(("noise_of", "noise"), [(0.0, 0.0012), (0.2, 0.04)])
def test_the_process_of_a_model_s_errors_is_found(noise_of: float, noise: float) -> None:
    """A smooth error of known size, and noise of a known one."""
    rng = np.random.default_rng(0)
    every = task(corrected.N_OF_PROCESS + 60)
    smooth = 0.6 * np.sin(1.5 * every.rows[:, 0, 0])
    latencies = every.ln_latency + smooth + noise_of * rng.standard_normal(len(smooth))
    wrong = dataclasses.replace(every, ln_latency=latencies)
    process = corrected.process_of_errors(Smooth(), [wrong, task(corrected.N_OF_PROCESS - 1)])
    assert process is not None and process.tasks == 1 and process.noise == noise
    assert f"noise {noise:g} (1 tasks)" in str(process)
    assert 0.05 <= process.amplitude <= 0.8 and process.length >= 0.5
    assert corrected.process_of_errors(Smooth(), [task(5)]) is None
