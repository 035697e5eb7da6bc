"""Scores of predictions within one task and over tasks.

Notation: y and p are measured and predicted ln(latency_us) of the N schedules of a task, [N].
Scores of several tasks are averaged with equal weight.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads `stats` when it is used
from numpy.typing import NDArray

#: Pairs whose latencies differ by less than this ratio are noise and are not counted.
NOISE = math.log(1.02)

#: A first choice that takes at most so many times as long as the best is near the best.
NEAR_BEST = 1.25

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scores:
    """How well a model ranks and predicts the schedules of a task (or of tasks, averaged).

    Attributes:
        pairwise: share of pairs (2 % or more apart) in the right order; 0.5 is guessing.
        top1: peak score, latency of the fastest over that of the schedule predicted fastest; 1
            is perfect, 0.5 means that the choice takes twice as long as the best.
        top5: the same for the fastest of the five predicted fastest.
        near_best: 1 where the schedule predicted fastest takes at most `NEAR_BEST` times as long
            as the fastest, else 0.
        spearman: rank correlation.
        rmse: root mean square error of ln latency.
        centred_rmse: the same after removing the task's mean error.
        slope: of the least squares line y = slope p + intercept, 1 is calibrated.
        intercept: of the same line, 0 is calibrated.
    """

    pairwise: float
    top1: float
    top5: float
    near_best: float
    spearman: float
    rmse: float
    centred_rmse: float
    slope: float
    intercept: float


def pairwise_accuracy(p: Vector, y: Vector) -> float:
    """Share of pairs at least `NOISE` apart that are predicted in order; NaN without pairs."""
    i, j = np.triu_indices(len(y), k=1)
    distinct = np.abs(y[i] - y[j]) >= NOISE
    order = np.sign(y[i] - y[j]) * np.sign(p[i] - p[j])
    if not distinct.any():
        return math.nan
    return float(((order[distinct] + 1) / 2).mean())  # a tie counts as half


def peak_score(p: Vector, y: Vector, k: int) -> float:
    """Best latency over the best latency of the k schedules predicted fastest, in (0, 1]."""
    chosen = np.argsort(p, kind="stable")[:k]
    return float(math.exp(y.min() - y[chosen].min()))


def line(p: Vector, y: Vector) -> tuple[float, float]:
    """Slope and intercept of y against p; NaN where p does not vary."""
    if len(p) < 2 or np.ptp(p) < 1e-9:
        return math.nan, math.nan
    slope, intercept = np.polyfit(p, y, 1)
    return float(slope), float(intercept)


def score(p: Vector, y: Vector) -> Scores:
    """Scores of one task."""
    error = p - y
    top1 = peak_score(p, y, 1)
    varies = len(y) > 2 and np.ptp(p) > 0 and np.ptp(y) > 0
    return Scores(
        pairwise_accuracy(p, y),
        top1,
        peak_score(p, y, 5),
        float(top1 >= 1.0 / NEAR_BEST),
        float(scipy.stats.spearmanr(p, y).statistic) if varies else math.nan,
        float(np.sqrt(np.mean(error**2))),
        float(np.sqrt(np.mean((error - error.mean()) ** 2))),
        *line(p, y),
    )


def mean(scores: Sequence[Scores]) -> Scores:
    """Average over tasks; a score that is undefined for a task does not count there."""
    values = np.array([dataclasses.astuple(s) for s in scores], dtype=np.float64)
    counts = np.isfinite(values).sum(axis=0)
    sums = np.nansum(np.where(np.isfinite(values), values, 0.0), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Scores(*(float(v) for v in np.where(counts > 0, sums / counts, math.nan)))
