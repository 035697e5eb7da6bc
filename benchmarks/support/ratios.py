"""Geometric means of ratios over tasks and seeds, with intervals, and the ends that they have.

An interval holds 95 % of the geometric means over tasks, and seeds of each, that are drawn anew
with replacement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

N_DRAWN, INTERVAL = 10_000, (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean of ratios and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.mean)} ({number(self.low)} to {number(self.high)})"


def number(ratio: float) -> str:
    """Two digits behind the point, fewer of what is large."""
    return f"{ratio:.{max(0, 2 - int(math.log10(max(ratio, 1.0))))}f}"


def mean(by_task: Mapping[str, Sequence[float]]) -> Mean:
    """Of the ratios of each task, one a seed; each task counts once."""
    logs = [[math.log(ratio) for ratio in ratios] for ratios in by_task.values()]
    counts = np.array([len(each) for each in logs])
    most = int(counts.max())
    filled = np.array([[*each, *[0.0] * (most - len(each))] for each in logs])
    rng = np.random.default_rng(0)
    tasks = rng.integers(len(counts), size=(N_DRAWN, len(counts), 1))
    seeds = (rng.random((N_DRAWN, len(counts), most)) * counts[tasks]).astype(np.intp)
    drawn = np.where(np.arange(most) < counts[tasks], filled[tasks, seeds], 0.0)
    means = (drawn.sum(axis=2) / counts[tasks[..., 0]]).mean(axis=1)
    middle = statistics.fmean(statistics.fmean(each) for each in logs)
    return Mean(*(math.exp(value) for value in (middle, *np.percentile(means, INTERVAL))))


def single(ratios: Mapping[str, float]) -> Mean:
    """Of one ratio a task."""
    return mean({name: [ratio] for name, ratio in ratios.items()})


def ends(by_task: Mapping[str, Sequence[float]]) -> tuple[str, str]:
    """The least and the most, with the task's name."""
    of = {name: statistics.geometric_mean(each) for name, each in by_task.items()}
    least, most = min(of, key=lambda name: of[name]), max(of, key=lambda name: of[name])
    return f"{number(of[least])} ({least})", f"{number(of[most])} ({most})"
