"""Scoring a cost model as a search uses it: corrected by a few measurements of each task.

Of a task, `count` schedules are measured as a search's warm-up has them, half of them those
predicted fastest and half drawn at random. The correction (`online.gaussian_process`) learns
them, and all others are ranked by it. Scores are of these others alone, so a fast schedule among
the measured ones helps no score; beside them are those of the model as it is, of the same
schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from costmodel.data import features as task_features
from costmodel.online import gaussian_process
from costmodel.training import evaluate

#: Schedules that have to be left of a task that is scored.
AT_LEAST = 5
#: Schedules of a task whose errors say what process they are of, at least; and the processes.
N_OF_PROCESS = 30
GRID = gaussian_process.CorrectionOptions(
    lengths=(0.25, 0.5, 1.0, 2.0),
    amplitudes=(0.05, 0.1, 0.2, 0.4, 0.8),
    noises=(0.0012, 0.0025, 0.005, 0.01, 0.04),
    max_records=128,
)


def reports(
    module: nn.Module, tasks: Sequence[task_features.TaskData], count: int, seed: int = 0
) -> list[evaluate.Report]:
    """Scores without and with the correction, of what is left after `count` measurements.

    Args:
        module: predicts ln(latency_us).
        tasks: those with fewer than `count` + `AT_LEAST` schedules that ran are left out.
        count: measurements.
        seed: of the random ones.

    Raises:
        RecordError: no task has so many.
    """
    plain = evaluate.of_module(module)
    rng = np.random.default_rng(seed)
    left: list[task_features.TaskData] = []
    corrected: dict[int, evaluate.Predictor] = {}
    for task in tasks:
        ran = np.flatnonzero(task.measured)
        if len(ran) < count + AT_LEAST:
            continue
        chosen = _warm_up(plain(task)[ran], count, rng)
        measured, others = ran[chosen], np.delete(ran, chosen)
        corrector = gaussian_process.Corrector(module)
        corrector.update(
            task.rows[measured],
            task.mask[measured],
            task.ln_latency[measured],
            np.zeros(count, np.int64),
        )
        left.append(task.only(others))
        corrected[id(left[-1])] = evaluate.of_module(corrector.for_task(0))
    return [
        evaluate.evaluate(f"before, left after {count}", plain, left, AT_LEAST),
        evaluate.evaluate(f"corrected by {count}", evaluate.by_task(corrected), left, AT_LEAST),
    ]


@dataclass(frozen=True, slots=True)
class Process:
    """The process (`gaussian_process`) that a model's errors are most likely of.

    Attributes:
        length: l, in median distances of a task's schedules.
        amplitude, noise: variances of ln(latency_us).
        tasks: whose errors they are.
    """

    length: float
    amplitude: float
    noise: float
    tasks: int

    def __str__(self) -> str:
        return (
            f"errors are most likely of a process of length {self.length:g}, amplitude "
            f"{self.amplitude:g} and noise {self.noise:g} ({self.tasks} tasks)"
        )


def process_of_errors(
    module: nn.Module, tasks: Sequence[task_features.TaskData]
) -> Process | None:
    """The process that the errors of a model on tasks are most likely of.

    None: no task has `N_OF_PROCESS` schedules that ran.

    Args:
        module: predicts ln(latency_us).
        tasks: that it never saw; those with fewer schedules are left out.
    """
    known = [task for task in tasks if task.measured.sum() >= N_OF_PROCESS]
    if not known:
        return None
    total: dict[tuple[float, float, float], float] = {}
    for task in known:
        ran = task.measured
        of_task = gaussian_process.likelihoods(
            module, task.rows[ran], task.mask[ran], task.ln_latency[ran], GRID
        )
        for values, ln_likelihood in of_task.items():
            total[values] = total.get(values, 0.0) + ln_likelihood
    length, amplitude, noise = max(total, key=lambda values: total[values])
    return Process(length, amplitude, noise, len(known))


def _warm_up(
    predicted: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Positions of the schedules that are measured [count]."""
    order = np.argsort(predicted, kind="stable")
    best = count - count // 2
    return np.concatenate([order[:best], rng.choice(order[best:], count // 2, replace=False)])
