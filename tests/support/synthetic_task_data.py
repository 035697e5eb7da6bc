"""Tasks whose ln latency is a known law of made-up features."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from costmodel.data import dataset
from costmodel.data import features as task_features
from costmodel.models import segment_mlp
from costmodel.training import train

NAMES = tuple(f"f{i}" for i in range(12))
SMALL = segment_mlp.ModelOptions(hidden=32, blocks=1)


def task(
    number: int, n: int = 40, operator: str = "gemm", shift: float = 0.0
) -> task_features.TaskData:
    """ln latency = shift + a non-linear law of the features, summed over two or three rows."""
    draws = np.random.default_rng(number)
    n_rows = 2 + number % 2
    rows = draws.uniform(0, 10, (n, n_rows, len(NAMES))).astype(np.float32)
    rows[..., 11] = number  # constant within the task, as a workload's size is
    law = (
        np.abs(rows[..., 0] - 5) * 0.3
        + 0.1 * rows[..., 1]
        - 0.02 * rows[..., 2] * rows[..., 3] / 5
    )
    mask = np.ones((n, n_rows), dtype=bool)
    y = shift + law.sum(axis=1) + draws.normal(0, 0.02, n)
    owner = dataset.Workload(f"k{number}-{operator}", f"t{number}", operator, "{}", None, 1, 1)
    return task_features.TaskData(
        owner, "llvm", "cpu", rows, mask, y, (None,) * n, ("random",) * n
    )


def features(all_tasks: list[task_features.TaskData]) -> task_features.Features:
    return task_features.Features(tuple(all_tasks), NAMES, 1, 0)


def quick(**changes: Any) -> train.TrainOptions:
    options = train.TrainOptions(
        epochs=25, patience=25, tasks_per_step=4, per_task=20, shape=SMALL
    )
    return dataclasses.replace(options, **changes)
