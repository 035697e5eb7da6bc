"""Scoring a cost model as a search uses it: corrected by a few measurements of each task.

Of a task, `count` schedules are measured as a search's warm-up has them, half of them those
predicted fastest and half drawn at random. The correction (`online.gaussian_process`) learns
them, and all others are ranked by it. Scores are of these others alone, so a fast schedule among
the measured ones helps no score; beside them are those of the model as it is, of the same
schedules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from costmodel.data import features as task_features
from costmodel.online import gaussian_process
from costmodel.training import evaluate

#: Schedules that have to be left of a task that is scored.
AT_LEAST = 5


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
            task.rows[measured], task.mask[measured], task.ln_latency[measured],
            np.zeros(count, np.int64),
        )  # fmt: skip
        left.append(task.only(others))
        corrected[id(left[-1])] = evaluate.of_module(corrector.for_task(0))
    return [
        evaluate.evaluate(f"before, left after {count}", plain, left, AT_LEAST),
        evaluate.evaluate(f"corrected by {count}", evaluate.by_task(corrected), left, AT_LEAST),
    ]


def _warm_up(
    predicted: NDArray[np.float64], count: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Positions of the schedules that are measured [count]."""
    order = np.argsort(predicted, kind="stable")
    best = count - count // 2
    return np.concatenate([order[:best], rng.choice(order[best:], count // 2, replace=False)])
