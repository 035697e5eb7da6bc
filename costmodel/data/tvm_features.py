"""TVM's own features of a schedule, as a reference point for those of Felix.

`PerStoreFeature` (Ansor's 164 columns a store) needs the program: every schedule is instantiated
by TVM and walked. Rows [N, R, 164] float32, one row a store, zero rows behind a program's last.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from typing import Any

import numpy as np

from costmodel.data import dataset as data
from costmodel.data import features as task_data
from costmodel.data import felix_bridge
from felix import errors

#: Columns of `PerStoreFeature` for one store.
N_FEATURES = 164


class TvmFeaturizer:
    """`tasks.Featurizer` over TVM's extractor; keeps the last few workloads."""

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
        machine: task_data.Machine,
        workload: data.Workload,
        sketch: tuple[int, str],
        batch: task_data.Batch,
    ) -> task_data.Rows | None:
        """Features of the decisions, without a row where TVM rejects them now.

        None when the sketch changed or is gone.
        """
        sketches, context = self._opened(workload, machine)
        found = felix_bridge.sketch_with(sketches, sketch[1], batch)
        if found is None:
            return None
        return task_data.stack([_one(found, context, row) for row in batch])


def _open(workload: data.Workload, machine: task_data.Machine) -> tuple[list[Any], Any]:
    from felix.tir import design_space

    task = felix_bridge.task_of(workload, machine.target)
    hardware = felix_bridge.hardware_of(machine.device)
    context = design_space.tune_context(task.mod, task.target, name=task.name)
    return felix_bridge.sketches_of(task, hardware), context


def _one(sketch: Any, context: Any, decisions: Any) -> task_data.Rows:
    """Features of one schedule [1, R, 164]."""
    from tvm.s_tir import meta_schedule as ms

    try:
        schedule = sketch.schedule(decisions)
    except errors.InvalidSchedule:
        return task_data.Rows(np.zeros((1, 1, N_FEATURES), np.float32), np.zeros((1, 1), np.bool_))
    candidate = ms.search_strategy.MeasureCandidate(schedule, [])
    extractor = ms.feature_extractor.PerStoreFeature()
    (stores,) = extractor.extract_from(context, [candidate])
    values = stores.numpy().astype(np.float32)
    return task_data.Rows(values[None], np.ones((1, len(values)), np.bool_))
