"""The bridge to Felix: stored workloads to tasks, decisions to rows of features.

Everything of `felix` that the cost model's tools use is called here, so that the rest can be
tested with fakes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.data import dataset as data
from costmodel.data import features as task_data
from felix import errors


def features_version() -> int:
    """`FEATURES_VERSION` of this Felix."""
    from felix.features import spec

    return int(spec.FEATURES_VERSION)


def workload(text: str) -> data.Workload:
    """The workload of one line of the text form ("gemm:64,64,64,epilogue=relu").

    Raises:
        WorkloadError: the line names no operator or its parameters are bad.
    """
    from felix import workloads
    from felix.workloads import catalogue

    operator, given = catalogue.parse_params(text)
    task = workloads.build(operator, given, "llvm")
    params = json.dumps(given, sort_keys=True, separators=(",", ":"))
    key = data.workload_key(operator, params, None)
    return data.Workload(key, task.name, operator, params, None, task.flops, task.min_bytes)


def target_text(target: str) -> str:
    """A target given by a user ("llvm", or JSON) in the canonical JSON that records carry."""
    from felix import target as felix_target

    return felix_target.describe(felix_target.parse(target))


def task_of(workload: data.Workload, target: str) -> Any:
    """The `felix.Task` of a stored workload.

    Raises:
        WorkloadError: operator or parameters are unknown to this version.
    """
    from felix import task, workloads

    if workload.params is not None:
        return workloads.build(workload.operator, json.loads(workload.params), target)
    if workload.tir is None:
        raise errors.WorkloadError(f"workload {workload.name} has neither parameters nor TIR")
    return task.Task.from_json(workload.tir, target)


def mask_of(rows: NDArray[np.floating[Any]], names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which rows exist [N, R]: those whose store runs at least once."""
    exists: NDArray[np.bool_] = rows[..., names.index("trip_count")] > 0
    return exists


class FelixFeaturizer:
    """`tasks.Featurizer` over Felix' sketches and formulas; keeps the last few workloads."""

    def __init__(self) -> None:
        from felix.sketch import formula_cache

        self.version = features_version()
        self.digest = formula_cache.code_digest()
        self._names: tuple[str, ...] = ()
        self._sketches = functools.lru_cache(maxsize=4)(self._make_sketches)

    def names(self) -> tuple[str, ...]:
        """Feature names in column order."""
        if not self._names:
            from felix.features import spec

            self._names = tuple(spec.NAMES)
        return self._names

    def rows(
        self,
        machine: task_data.Machine,
        workload: data.Workload,
        sketch: tuple[int, str],
        batch: task_data.Batch,
    ) -> task_data.Rows | None:
        """Exact features of the decisions; None when that sketch changed or is gone."""
        found = sketch_with(self._sketches(workload, machine), sketch[1], batch)
        if found is None:
            return None
        formulas = found.formulas
        self._names = tuple(formulas.names)
        values = np.asarray(formulas.exact(batch), dtype=np.float32)
        return task_data.Rows(values, mask_of(values, self._names))

    def _make_sketches(self, workload: data.Workload, machine: task_data.Machine) -> list[Any]:
        return sketches_of(task_of(workload, machine.target), hardware_of(machine.device))


def sketches_of(task: Any, hardware: Any = None) -> list[Any]:
    """The sketches of a task, with formulas for the given hardware (default: this machine's)."""
    from felix.sketch import sketch

    return list(sketch.sketches(task, hardware))


def sketch_with(sketches: Sequence[Any], key: str, batch: task_data.Batch) -> Any | None:
    """The sketch of that key if a batch of decisions [N, n_variables] still fits it."""
    found = next((sketch for sketch in sketches if sketch.key == key), None)
    return found if found is not None and batch.shape[1] == len(found.variables) else None


def device_text(target: str) -> str:
    """What records say of this machine: its hardware as JSON, the caches and rates included."""
    from felix import target as felix_target

    return json.dumps(dataclasses.asdict(felix_target.hardware(target)), sort_keys=True)


def hardware_of(device: str) -> Any:
    """The hardware a record's device describes; None where it is only a name."""
    from felix import target as felix_target

    if not device.startswith("{"):
        return None
    try:
        return felix_target.Hardware(**json.loads(device))
    except (TypeError, ValueError) as error:
        raise errors.RecordError(f"a record's device cannot be read: {device[:80]}") from error


def is_gpu(target: str) -> bool:
    """Whether programs for the target run on a GPU."""
    return str(json.loads(target)["kind"]) == "cuda"


def pool_for(task: Any, builders: int) -> Any:
    """A measuring pool on this machine that checks results against the task's program.

    Its timing stops sooner than in tuning: many schedules matter more here than the last
    per cent of one. On a GPU several collectors share the device by its lock, and what compiles
    for long or runs for seconds is given up.
    """
    from felix.measure import timing
    from felix.measure.pool import local

    if task.target.kind.name == "cuda":
        limits = local.LocalOptions(builders=builders, build_timeout_s=5.0, run_timeout_s=4.0)
        return local.LocalPool(task, limits)
    quick = timing.TimingOptions(max_repeats=15, max_total_s=0.2)
    return local.LocalPool(task, local.LocalOptions(timing=quick, builders=builders))
