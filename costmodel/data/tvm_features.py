"""TVM's own features of a schedule, as a reference point for those of Felix.

`PerStoreFeature` (Ansor's 164 columns a store) needs the program: every schedule is instantiated
by TVM and walked. Rows [N, R, 164] float32, one row a store, zero rows behind a program's last.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodel.data import dataset as datasets
from costmodel.data import features as task_features
from costmodel.data import felix_bridge
from felix import errors
from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    from felix.space.trace_sketch import TraceSketch

#: Columns of `PerStoreFeature` for one store.
N_FEATURES = 164


class TvmFeaturizer:
    """`features.Featurizer` over TVM's extractor; a few workloads stay open."""

    kind = FeatureKind.TRACE
    version = 1

    def __init__(self) -> None:
        tvm = importlib.metadata.version("apache-tvm")
        self.digest = hashlib.sha256(f"PerStoreFeature {tvm}".encode()).hexdigest()
        self._opened = functools.lru_cache(maxsize=4)(_open)

    def names(self) -> tuple[str, ...]:
        """Column names; TVM gives none, so they are numbered."""
        return tuple(f"per_store_{column}" for column in range(N_FEATURES))

    def rows(
        self,
        machine: task_features.Machine,
        workload: datasets.Workload,
        sketch: tuple[int, str],
        batch: task_features.Batch,
    ) -> task_features.Rows | None:
        """Features of the decisions, without a row where TVM rejects them now.

        None when the sketch changed or is gone.
        """
        sketches, context = self._opened(workload, machine)
        current = felix_bridge.sketch_with(sketches, sketch[1], batch)
        if current is None:
            return None
        return task_features.stack([_one(current, context, row) for row in batch])


def _open(
    workload: datasets.Workload, machine: task_features.Machine
) -> tuple[list[TraceSketch], Any]:
    """Sketches of the workload, and a TVM tuning context of it."""
    from felix.tir import design_space

    task = felix_bridge.task_of(workload, machine.target)
    hardware = felix_bridge.hardware_of(machine.device)
    context = design_space.tune_context(task.mod, task.target, name=task.name)
    return felix_bridge.sketches_of(task, hardware), context


def _one(sketch: TraceSketch, context: Any, decisions: NDArray[np.int64]) -> task_features.Rows:
    """Features of one schedule [1, R, 164]."""
    from tvm.s_tir import meta_schedule as ms

    try:
        schedule = sketch.schedule(decisions.tolist())
    except errors.InvalidSchedule:
        return task_features.Rows(
            np.zeros((1, 1, N_FEATURES), np.float32), np.zeros((1, 1), np.bool_)
        )
    candidate = ms.search_strategy.MeasureCandidate(schedule, [])
    extractor = ms.feature_extractor.PerStoreFeature()
    (stores,) = extractor.extract_from(context, [candidate])
    values = stores.numpy().astype(np.float32)
    return task_features.Rows(values[None], np.ones((1, len(values)), np.bool_))
