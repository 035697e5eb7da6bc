"""Made-up measurements of real template sketches, for tests of data sets and cost models.

Latencies follow a formula with noise that no GPU has: they show that what is trained learns, not
how fast a kernel is.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from costmodel.data import dataset, felix_bridge
from felix.runner import protocol
from felix.templates import spec
from tests.support.function_measurer import FunctionMeasurer

TIME = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
TARGET = felix_bridge.target_text("h200")
STAGES, ANALYTIC = spec.NAMES.index("stages"), spec.NAMES.index("analytic_us")


class Pool(FunctionMeasurer):
    """A pool without a device for all tasks; the program's text decides."""

    def __init__(self, answer: Callable[[Any], float | protocol.ErrorClass] | None = None) -> None:
        super().__init__(answer or latency_us)
        self.timing_lock = self

    def for_task(self, task: Any) -> Pool:
        return self

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        yield


def latency_us(program: Any) -> float:
    """The same for the same program, 10 to 110 us."""
    digest = hashlib.sha256(program.source.encode()).digest()
    return 10.0 + int.from_bytes(digest[:2]) / 655.36


def write(folder: pathlib.Path, lines: list[str], per_workload: int, seed: int = 0) -> None:
    """A data set whose kernels are slower than their formula says, the more stages they have."""
    draws = np.random.default_rng(seed)
    workloads = [felix_bridge.workload(line, TARGET) for line in lines]
    with dataset.Writer(folder) as writer:
        writer.add_workloads(workloads)
        for workload in workloads:
            sketches = felix_bridge.template_sketches_of(felix_bridge.task_of(workload, TARGET))
            for sketch in sketches:
                rows = sketch.sample(per_workload // len(sketches), seed=seed + 1)
                values = sketch.formulas.exact(rows).astype(np.float32)
                us = (np.exp2(values[..., ANALYTIC]) - 1).sum(axis=1)
                us *= 3.0 * np.exp2(values[:, 0, STAGES]) / 4
                us *= np.exp(0.03 * draws.standard_normal(len(us)))
                for row, features, time_us in zip(rows.tolist(), values, us, strict=True):
                    writer.add(record(workload, sketch, tuple(row), features, float(time_us)))


def record(
    workload: dataset.Workload, sketch: Any, row: tuple[int, ...], features: Any, time_us: float
) -> dataset.Record:
    return dataset.Record(
        workload.key, TARGET, sketch.index, sketch.key, row, (time_us,), None, "testgpu", "0.27",
        "random", TIME, True, sketch.variant, tuple(features.ravel().tolist()), spec.VERSION,
    )  # fmt: skip
