"""The line that makes a trained network's predictions right on average.

A ranking term in the loss stretches predictions: y = slope p + intercept, fitted on workloads that
were not trained on, takes that back and leaves the order of schedules as it is.

Notation: y and p as in `metrics`; each task has the same weight, whatever its count of schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.training import metrics


@dataclass(frozen=True, slots=True)
class Line:
    """ln latency = slope * prediction + intercept; as it is by default."""

    slope: float = 1.0
    intercept: float = 0.0


def fit(tasks: Sequence[tuple[metrics.Vector, metrics.Vector]]) -> Line:
    """The least squares line through (p, y) of the tasks.

    Predictions that do not vary or rise where latencies fall have no line that keeps their order:
    they stay as they are.
    """
    if not any(len(p) for p, _ in tasks):
        return Line()
    p, y, weight = (
        np.concatenate(values)
        for values in zip(
            *((p, y, np.full(len(p), 1.0 / len(p))) for p, y in tasks if len(p)), strict=True
        )
    )
    share = weight / weight.sum()
    p_mean, y_mean = share @ p, share @ y
    spread = share @ (p - p_mean) ** 2
    if spread < 1e-9:
        return Line()
    slope = float(share @ ((p - p_mean) * (y - y_mean)) / spread)
    return Line(slope, float(y_mean - slope * p_mean)) if slope > 0 else Line()
