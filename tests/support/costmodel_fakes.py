"""A made-up data set of a cost model, whose latencies are a function of the decisions."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np

from costmodel import registry
from costmodel.data import dataset, features
from felix.features.kind import FeatureKind

NAMES = (
    "trip_count",
    "float_ops",
    "buf0.bytes",
    "buf0.unique_bytes",
    "grid_blocks",
    *registry.ANALYTIC_TIMES,
)
TIME = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


class FakeFeaturizer:
    """Rows that are functions of the decisions."""

    kind = FeatureKind.TRACE
    version = 5
    digest = "d" * 64

    def names(self) -> tuple[str, ...]:
        return NAMES

    def rows(self, machine: Any, owner: Any, sketch: tuple[int, str], batch: Any) -> features.Rows:
        values = np.zeros((len(batch), 2, len(NAMES)), dtype=np.float32)
        values[..., 0] = 4
        values[..., 1:4] = batch[:, None, :3]
        return features.Rows(values, values[..., 0] > 0)


def write_data(folder: Path) -> None:
    draws = np.random.default_rng(0)
    with dataset.Writer(folder) as writer:
        for number in range(24):
            operator = ("gemm", "conv2d", "softmax")[number % 3]
            params = json.dumps({"m": number})
            key = dataset.workload_key(operator, params, None)
            name = f"{operator}_{number}"
            writer.add_workloads([dataset.Workload(key, name, operator, params, None, 1, 1)])
            for row in draws.integers(0, 20, (30, 3)).tolist():
                us = float(np.exp(2 + 0.2 * row[0] + 0.1 * abs(row[1] - 10)))
                bad = row[2] == 3
                writer.add(
                    dataset.Record(
                        key,
                        '{"kind":"llvm"}',
                        0,
                        "s",
                        tuple(row),
                        () if bad else (us,),
                        "build" if bad else None,
                        "testcpu",
                        "0.27",
                        "random",
                        TIME,
                    )
                )
