"""The cost model as a MetaSchedule plug-in (`MLPCostModel`), and what it knows of each workload.

TVM expects scores, higher is better: a score here is (fastest known latency) / (predicted
latency) of the workload. A failed run teaches the model nothing. A candidate whose trace cannot
be modelled gets the median score of its batch, or 1 if the whole batch is unknown: it is neither
preferred nor shut out.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import tvm_ffi
from numpy.typing import NDArray
from torch import nn
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from felix import errors, target
from felix.metaschedule import trace_lookup
from felix.runner import protocol
from felix.search import cost_model as models
from felix.search import scoring
from felix.space.trace_sketch import TraceSketch
from felix.task import Task
from felix.tir import cost as tir_cost

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir.schedule import Trace

_log = logging.getLogger("felix.metaschedule")
#: TVM's run time of a failed run, in seconds.
_FAILED_RUN_S = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """The part of a TuneContext that says what is tuned; the context owns what keeps this."""

    mod: tvm.IRModule
    target: tvm.target.Target
    space_generator: ms.space_generator.SpaceGenerator
    task_name: str
    rand_state: int

    @classmethod
    def of(cls, context: ms.TuneContext) -> Context:
        """What is kept of a context."""
        name, seed = str(context.task_name), int(context.rand_state)
        return cls(context.mod, context.target, context.space_generator, name, seed)


class Workload:
    """A module and target MetaSchedule tunes, with the sketches met so far."""

    def __init__(self, context: Context, index: int) -> None:
        """Raises WorkloadError or TargetError if Felix cannot model the module or the target."""
        complete = target.parse(context.target)
        cost = tir_cost.count(context.mod["main"])
        self.task = Task(context.task_name, context.mod, complete, 1.0, cost.flops, cost.min_bytes)
        self.index = index
        #: ln(latency_us) that scores 1; None before anything is known
        self.reference: float | None = None
        self._machine = target.hardware(complete)
        self._space_generator = context.space_generator
        sketches: list[TraceSketch] = []
        scorer = scoring.Scorer(sketches, no_model)
        self.scorer = trace_lookup.TraceScorer(scorer, sketches, self.sketch)

    def sketch(self, trace: Trace, number: int) -> TraceSketch:
        """The sketch of a trace; raises UnsupportedSchedule."""
        sketch = TraceSketch(self.task, number, trace, self._space_generator, self._machine)
        _ = sketch.formulas.default
        return sketch


@dataclasses.dataclass(frozen=True, slots=True)
class _Network:
    """A loaded model and what trains it."""

    device: str
    module: nn.Module
    tuner: models.OnlineModel | None


class OnlineModel:
    """A cost model that follows the measurements of MetaSchedule's workloads.

    Args:
        model: checkpoint or module; None: the one shipped for the first workload's target.
        seed: of fine-tuning.
        learn: whether to fine-tune.
    """

    def __init__(
        self, model: str | pathlib.Path | nn.Module | None, seed: int, learn: bool
    ) -> None:
        self._source = model
        self._seed = seed
        self._learn = learn
        self._network: _Network | None = None
        self._workloads: dict[str, Workload] = {}
        self._refused: set[str] = set()

    def workload(self, context: Context) -> Workload:
        """What is known of a context's module; raises as `Workload` does."""
        key = f"{tvm_ffi.structural_hash(context.mod)}|{context.target}"
        if key not in self._workloads:
            self._workloads[key] = Workload(context, len(self._workloads))
        return self._workloads[key]

    def workload_or_none(self, context: Context) -> Workload | None:
        """`workload`; None, with one warning, if it cannot be modelled."""
        try:
            return self.workload(context)
        except (errors.WorkloadError, errors.TargetError, errors.UnsupportedSchedule) as error:
            if str(error) not in self._refused:
                _log.warning("%s is not modelled: %s", context.task_name, error)
            self._refused.add(str(error))
            return None

    def live(self, workload: Workload) -> nn.Module:
        """The model for one workload; it changes when the model learns."""
        network = self._open(workload.task.target)
        if network.tuner is None:
            return network.module.eval()
        return network.tuner.for_task(workload.index)

    def predict(self, workload: Workload, traces: Sequence[Trace]) -> NDArray[np.float64]:
        """Predicted ln(latency_us) of traces, NaN for unknown ones."""
        workload.scorer.scorer.model = self.live(workload)
        predicted = workload.scorer.predict(traces)
        if workload.reference is None and np.isfinite(predicted).any():
            workload.reference = float(np.nanmin(predicted))
        return predicted

    def learn(self, workload: Workload, measured: Sequence[tuple[Trace, float]]) -> None:
        """Fine-tune on (trace, latency_us) pairs; unknown traces teach nothing."""
        rows, latencies = [], []
        for trace, latency_us in measured:
            located = workload.scorer.find(trace)
            features = None if located is None else workload.scorer.features(located)
            if features is not None:
                rows.append(features)
                latencies.append(np.log(latency_us))
        if not rows:
            return
        best = float(min(latencies))
        workload.reference = best if workload.reference is None else min(best, workload.reference)
        tuner = self._open(workload.task.target).tuner
        if tuner is None:
            return
        height = max(map(len, rows))
        padded = np.stack([np.pad(r, ((0, height - len(r)), (0, 0))) for r in rows])
        mask = scoring.row_mask(torch.from_numpy(padded)).numpy()
        tuner.update(padded, mask, np.asarray(latencies), np.full(len(rows), workload.index))

    def save(self, path: str) -> None:
        """Write the weights as a checkpoint, which `load` and `felix.tune(model=...)` take."""
        network = self._network
        if network is None:
            raise errors.CheckpointError("there is no model to save before it is used")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        data = {"fine_tuned_on": 0 if network.tuner is None else len(network.tuner)}
        models.save(path, network.module, network.device, data, now)

    def load(self, path: str) -> None:
        """Take the weights of a checkpoint; what was learnt is forgotten."""
        models.check(path)  # raises now, not at first use
        self._source, self._network = path, None

    def _open(self, built_for: tvm.target.Target) -> _Network:
        device = models.device_key(built_for)
        if self._network is None:
            self._network = self._load(built_for, device)
        if self._network.device != device:
            raise errors.TuningError(
                f"this cost model serves {self._network.device}: use another one for {device}"
            )
        return self._network

    def _load(self, built_for: tvm.target.Target, device: str) -> _Network:
        loaded = models.load(self._source, built_for, self._seed)
        if loaded.info is not None:
            _log.info("%s", loaded.message)
        fine_tuning = models.fine_tuning(self._seed)
        tuner = models.online(loaded, fine_tuning) if self._learn else None
        return _Network(device, loaded.module, tuner)


@derived_object
class MLPCostModel(ms.cost_model.PyCostModel):  # type: ignore[misc]
    """Felix's cost model for any MetaSchedule strategy; see `felix.metaschedule`.

    Args:
        model: checkpoint or module; the one shipped for the target if left out.
        seed: of fine-tuning.
        learn: whether to fine-tune on what is measured.
    """

    def __init__(
        self,
        model: str | pathlib.Path | nn.Module | None = None,
        *,
        seed: int = 0,
        learn: bool = True,
    ) -> None:
        self.online = OnlineModel(model, seed, learn)

    def load(self, path: str) -> None:
        """Take the weights of a checkpoint; raises CheckpointError if it does not fit."""
        self.online.load(path)

    def save(self, path: str) -> None:
        """Write the weights as a checkpoint; raises CheckpointError before the first use."""
        self.online.save(path)

    def update(
        self,
        context: ms.TuneContext,
        candidates: Sequence[ms.search_strategy.MeasureCandidate],
        results: Sequence[ms.runner.RunnerResult],
    ) -> None:
        """Fine-tune on new measurements."""
        workload = self.online.workload_or_none(Context.of(context))
        if workload is not None:
            self.online.learn(workload, latencies_us(candidates, results))

    def predict(
        self, context: ms.TuneContext, candidates: Sequence[ms.search_strategy.MeasureCandidate]
    ) -> NDArray[np.float64]:
        """Scores, higher is better."""
        workload = self.online.workload_or_none(Context.of(context))
        if workload is None or not len(candidates):
            return np.ones(len(candidates))
        predicted = self.online.predict(workload, [c.sch.trace for c in candidates])
        known = np.isfinite(predicted)
        if not known.any() or workload.reference is None:
            return np.ones(len(candidates))
        scores = np.exp(np.clip(workload.reference - predicted, -50.0, 50.0))
        scores[~known] = np.median(scores[known])
        return scores


def no_model(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Stands for a model until one is loaded."""
    raise errors.TuningError("the cost model is not loaded yet")


def _register_errors(register: Callable[[str, type], object]) -> None:
    """Let Felix's errors keep their types when TVM passes them on."""
    remaining: list[type] = [errors.FelixError]
    while remaining:
        kind = remaining.pop()
        register(kind.__name__, kind)
        remaining += kind.__subclasses__()


_register_errors(tvm_ffi.register_error)


def measurement(result: ms.runner.RunnerResult) -> protocol.Measurement:
    """A runner's result; TVM's sentinel for a failed run becomes an error."""
    run_s = [float(seconds) for seconds in result.run_secs or ()]
    if run_s and 0 < statistics.median(run_s) < _FAILED_RUN_S:
        return protocol.Measurement.timed([seconds * 1e6 for seconds in run_s])
    message = str(result.error_msg or "no run time").strip()
    return protocol.Measurement(error=protocol.ErrorClass.LAUNCH, message=message)


def latencies_us(
    candidates: Sequence[ms.search_strategy.MeasureCandidate],
    results: Sequence[ms.runner.RunnerResult],
) -> list[tuple[Trace, float]]:
    """(trace, latency_us) of the candidates that ran."""
    measured = ((c, measurement(r)) for c, r in zip(candidates, results, strict=True))
    return [(c.sch.trace, m.latency_us) for c, m in measured if m.latency_us is not None]
