"""Predictors to compare the network with, on the same split: gradient-boosted trees.

Trees take one vector per program: sums and maxima over its rows of each feature, and the row
count. Needs the optional xgboost package.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.data import features as task_features
from costmodel.training import evaluate, metrics


def have_xgboost() -> bool:
    """Whether the optional xgboost package is installed."""
    return importlib.util.find_spec("xgboost") is not None


def pooled(task: task_features.TaskData) -> NDArray[np.float32]:
    """One vector per program [N, 2 F + 1]: row sums, row maxima, number of rows."""
    hidden = task.rows * task.mask[..., None]
    count = task.mask.sum(axis=1, keepdims=True).astype(np.float32)
    vector: NDArray[np.float32] = np.concatenate(
        [hidden.sum(axis=1), hidden.max(axis=1), count], axis=1
    )
    return vector


def fit_xgboost(
    training: Sequence[task_features.TaskData],
    validation: Sequence[task_features.TaskData],
    seed: int = 0,
    threads: int = 2,
) -> evaluate.Predictor:
    """Trees on ln latency; tasks weigh the same; stopped early on the validation tasks."""
    import xgboost

    def matrix(tasks: Sequence[task_features.TaskData]) -> xgboost.DMatrix:
        x = np.concatenate([pooled(t)[t.measured] for t in tasks])
        y = np.concatenate([t.ln_latency[t.measured] for t in tasks])
        weight = np.concatenate([np.full(t.measured.sum(), 1 / t.measured.sum()) for t in tasks])
        return xgboost.DMatrix(x, label=y, weight=weight * len(y) / len(tasks))

    parameters = {
        "max_depth": 8,
        "eta": 0.08,
        "subsample": 0.8,
        "colsample_bytree": 0.6,
        "objective": "reg:squarederror",
        "seed": seed,
        "nthread": threads,
    }
    watch = [(matrix(validation), "validation")] if validation else []
    trees = xgboost.train(
        parameters,
        matrix(training),
        num_boost_round=400,
        evals=watch,
        early_stopping_rounds=30 if watch else None,
        verbose_eval=False,
    )

    def predict(task: task_features.TaskData) -> metrics.Vector:
        p: metrics.Vector = trees.predict(xgboost.DMatrix(pooled(task))).astype(np.float64)
        return p

    return predict
