"""The bridge to Felix: stored workloads to tasks, decisions to rows of features.

Tasks, sketches, hardware and pools are made here, so that the rest can be tested with fakes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.data import dataset as datasets
from costmodel.data import features as task_features
from felix import errors
from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    from felix.measure import local
    from felix.space.sketch import OnLeftOut, Sketch
    from felix.space.template_sketch import TemplateSketch
    from felix.space.trace_sketch import TraceSketch
    from felix.target import Hardware
    from felix.task import Task

AnySketch = TypeVar("AnySketch", bound="Sketch")
#: The feature of traces that is 0 where a store does not run.
_TRIP_COUNT = "trip_count"


def features_version(kind: FeatureKind = FeatureKind.TRACE) -> int:
    """Version of this Felix's features of a kind."""
    from felix.features import spec
    from felix.templates import spec as template_spec

    return template_spec.VERSION if kind is FeatureKind.TEMPLATE else int(spec.FEATURES_VERSION)


def feature_names(kind: FeatureKind) -> tuple[str, ...]:
    """Names of this Felix's features of a kind, in column order."""
    from felix.features import spec
    from felix.templates import spec as template_spec

    return template_spec.NAMES if kind is FeatureKind.TEMPLATE else tuple(spec.NAMES)


def workload(text: str, target: str = "llvm") -> datasets.Workload:
    """The workload of one line of the text form ("gemm:64,64,64,epilogue=relu").

    Raises:
        WorkloadError: the line names no operator, its parameters are bad, or the target has no
            programs of its types.
    """
    from felix import workloads
    from felix.workloads import catalogue

    operator, arguments = catalogue.parse_params(text)
    task = workloads.build(operator, arguments, target)
    params = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    key = datasets.workload_key(operator, params, None)
    return datasets.Workload(key, task.name, operator, params, None, task.flops, task.min_bytes)


def target_text(target: str) -> str:
    """A user's target ("llvm", or JSON) in the canonical JSON that records carry."""
    from felix import target as felix_target

    return felix_target.describe(felix_target.parse(target))


def task_of(workload: datasets.Workload, target: str) -> Task:
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
    """Which rows exist [N, R]: stores that run at least once, kernels that are launched."""
    exists: NDArray[np.bool_] = (rows != 0).any(axis=-1)
    if _TRIP_COUNT in names:
        exists = rows[..., names.index(_TRIP_COUNT)] > 0
    return exists


class FelixFeaturizer:
    """`features.Featurizer` over Felix's sketches and formulas; a few workloads stay open."""

    kind = FeatureKind.TRACE

    def __init__(self) -> None:
        from felix.space import formula_cache

        self.version = features_version(self.kind)
        self.digest = formula_cache.code_digest()
        self._sketches = functools.lru_cache(maxsize=4)(self._make_sketches)

    def names(self) -> tuple[str, ...]:
        """Feature names in column order."""
        return feature_names(self.kind)

    def rows(
        self,
        machine: task_features.Machine,
        workload: datasets.Workload,
        sketch: tuple[int, str],
        batch: task_features.Batch,
    ) -> task_features.Rows | None:
        """Exact features of the decisions; None when that sketch changed or is gone."""
        current = sketch_with(self._sketches(workload, machine), sketch[1], batch)
        if current is None:
            return None
        values = np.asarray(current.formulas.exact(batch), dtype=np.float32)
        return task_features.Rows(values, mask_of(values, self.names()))

    def _make_sketches(
        self, workload: datasets.Workload, machine: task_features.Machine
    ) -> Sequence[Sketch]:
        return sketches_of(task_of(workload, machine.target), hardware_of(machine.device))


class TemplateFeaturizer(FelixFeaturizer):
    """The same for template sketches, for records whose stored features are of another version."""

    kind = FeatureKind.TEMPLATE

    def __init__(self) -> None:
        from felix.space import formula_cache

        super().__init__()
        self.digest = formula_cache.code_digest(formula_cache.TEMPLATE_SOURCES)

    def _make_sketches(
        self, workload: datasets.Workload, machine: task_features.Machine
    ) -> Sequence[Sketch]:
        task = task_of(workload, machine.target)
        return template_sketches_of(task, hardware_of(machine.device))


def sketches_of(task: Task, hardware: Hardware | None = None) -> list[TraceSketch]:
    """The trace sketches of a task, with formulas for the hardware (by default this machine's)."""
    from felix.space import sketch

    return sketch.trace_sketches(task, hardware)


def template_sketches_of(
    task: Task, hardware: Hardware | None = None, on_left_out: OnLeftOut | None = None
) -> list[TemplateSketch]:
    """The template sketches of a task; `on_left_out` is told why there are none."""
    from felix.space import sketch

    return sketch.of_templates(task, hardware, on_left_out)


def with_decisions(sketches: Sequence[AnySketch]) -> list[AnySketch]:
    """Those that have legal decisions, which tuning opens."""
    from felix.space import legality

    return [sketch for sketch in sketches if legality.make_formulas(sketch) is None]


def sketch_with(
    sketches: Sequence[AnySketch], key: str, batch: task_features.Batch
) -> AnySketch | None:
    """The sketch of that key if a batch of decisions [N, n_variables] still fits it."""
    for sketch in sketches:
        if sketch.key == key and batch.shape[1] == len(sketch.variables):
            return sketch
    return None


def device_text(target: str) -> str:
    """What records say of this machine: its hardware as JSON, the caches and rates included."""
    from felix import target as felix_target

    return json.dumps(dataclasses.asdict(felix_target.hardware(target)), sort_keys=True)


def hardware_of(device: str) -> Hardware | None:
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


def pool_for(task: Task, builders: int) -> local.LocalPool:
    """A measuring pool on this machine that checks results against the task's program.

    Its timing stops sooner than in tuning: many schedules matter more here than the last
    per cent of one. On a GPU several collectors share the device by its lock, and what compiles
    for long or runs for seconds is given up.
    """
    from felix.measure import local
    from felix.runner import timing

    if task.target.kind.name == "cuda":
        limits = local.LocalOptions(builders=builders, build_timeout_s=5.0, run_timeout_s=4.0)
        return local.LocalPool(task, limits)
    quick = timing.TimingOptions(max_repeats=15, max_total_s=0.2)
    return local.LocalPool(task, local.LocalOptions(timing=quick, builders=builders))
