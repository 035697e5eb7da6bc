"""Felix inside TVM's own tuner: a search strategy and a cost model for MetaSchedule.

    from tvm.s_tir import meta_schedule as ms
    from felix.metaschedule import GradientSearch, MLPCostModel

    model = MLPCostModel()
    database = ms.tune_tir(mod, target, work_dir, 64, num_trials_per_iter=16,
                           strategy=GradientSearch(model), cost_model=model)

Design spaces, building, running and the database stay TVM's. `GradientSearch` proposes what to
measure; `MLPCostModel` serves any strategy, TVM's evolutionary search too. Each works without
the other; given the same model object, they learn once.

What cannot be modelled: a design space with an instruction Felix does not know (tensor
intrinsics, say) is left out of the gradient search, with a warning; if none remains, tuning
ends with an error. A candidate from such a space gets the median score of its batch from the
cost model, or 1 if the whole batch is unknown: it is neither preferred nor shut out.

TVM expects scores, higher is better: a score here is (fastest known latency) / (predicted
latency) of the workload. A failed run teaches the strategy not to propose it again, and teaches
the model nothing.

An error raised in a plug-in ends `ms.tune_tir` and arrives there with its own type.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import logging
import pathlib
import statistics
import types as python_types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tvm_ffi
from numpy.typing import NDArray
from torch import nn
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from felix import errors, target
from felix.measure import protocol
from felix.metaschedule import trace_lookup
from felix.search import cost_model as felix_cost_model
from felix.search import interface, scoring
from felix.search.strategies import gradient
from felix.sketch.sketch import Sketch
from felix.task import Task
from felix.tir import cost as tir_cost

if TYPE_CHECKING:
    import tvm

_log = logging.getLogger("felix.metaschedule")

#: TVM's run time of a failed run, in seconds.
_FAILED_RUN_S = 1e9
#: Searches of one round before a space counts as exhausted: TVM may reject what was proposed.
_MAX_TRIES = 3


class Workload:
    """A module and target MetaSchedule tunes, with the sketches met so far."""

    def __init__(self, context: Any, index: int) -> None:
        """Raises WorkloadError or TargetError if Felix cannot model the module or the target."""
        complete = target.parse(context.target)
        cost = tir_cost.count(context.mod["main"])
        self.task = Task(
            str(context.task_name), context.mod, complete, 1.0, cost.flops, cost.min_bytes
        )
        self.index = index
        #: ln(latency_us) that scores 1; None before anything is known
        self.reference: float | None = None
        self._machine = target.hardware(complete)
        # not the context itself, which owns the strategy that keeps this
        self._rules = python_types.SimpleNamespace(space_generator=context.space_generator)
        self.scorer = trace_lookup.TraceScorer(scoring.Scorer([], _unset), self.sketch)

    def sketch(self, trace: Any, number: int) -> Sketch:
        """The sketch of a trace; raises UnsupportedSchedule."""
        made = Sketch(self.task, number, trace, self._rules, self._machine)
        _ = made.formulas.default
        return made


@dataclasses.dataclass(frozen=True, slots=True)
class _Network:
    """A loaded model and what trains it."""

    device: str
    module: nn.Module
    tuner: felix_cost_model.OnlineModel | None


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
        self._given = model
        self._seed = seed
        self._learn = learn
        self._network: _Network | None = None
        self._workloads: dict[str, Workload] = {}
        self._refused: set[str] = set()

    def workload(self, context: Any) -> Workload:
        """What is known of a context's module; raises as `Workload` does."""
        key = f"{tvm_ffi.structural_hash(context.mod)}|{context.target}"
        if key not in self._workloads:
            self._workloads[key] = Workload(context, len(self._workloads))
        return self._workloads[key]

    def workload_or_none(self, context: Any) -> Workload | None:
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

    def predict(self, workload: Workload, found: Sequence[Any]) -> NDArray[np.float64]:
        """Predicted ln(latency_us) of traces, NaN for unknown ones."""
        workload.scorer.scorer.model = self.live(workload)
        predicted = workload.scorer.predict(found)
        if workload.reference is None and np.isfinite(predicted).any():
            workload.reference = float(np.nanmin(predicted))
        return predicted

    def learn(self, workload: Workload, measured: Sequence[tuple[Any, float]]) -> None:
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
        felix_cost_model.save(path, network.module, network.device, data, now)

    def load(self, path: str) -> None:
        """Take the weights of a checkpoint; what was learnt before is forgotten."""
        felix_cost_model.check(path)  # raises now, not at first use
        self._given, self._network = path, None

    def _open(self, built_for: tvm.target.Target) -> _Network:
        device = felix_cost_model.device_key(built_for)
        if self._network is None:
            self._network = self._load(built_for, device)
        if self._network.device != device:
            raise errors.TuningError(
                f"this cost model serves {self._network.device}: use another one for {device}"
            )
        return self._network

    def _load(self, built_for: tvm.target.Target, device: str) -> _Network:
        loaded = felix_cost_model.load(self._given, built_for, self._seed)
        if loaded.info is not None:
            _log.info("%s", loaded.message)
        fine_tuning = felix_cost_model.fine_tuning(self._seed)
        tuner = felix_cost_model.online(loaded, fine_tuning) if self._learn else None
        return _Network(device, loaded.module, tuner)


@derived_object
class MLPCostModel(ms.cost_model.PyCostModel):  # type: ignore[misc]
    """Felix's cost model for any MetaSchedule strategy; see the module docstring.

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

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Fine-tune on new measurements."""
        workload = self.online.workload_or_none(context)
        if workload is not None:
            self.online.learn(workload, _latencies(candidates, results))

    def predict(self, context: Any, candidates: Sequence[Any]) -> NDArray[np.float64]:
        """Scores, higher is better."""
        workload = self.online.workload_or_none(context)
        if workload is None or not len(candidates):
            return np.ones(len(candidates))
        predicted = self.online.predict(workload, [c.sch.trace for c in candidates])
        known = np.isfinite(predicted)
        if not known.any() or workload.reference is None:
            return np.ones(len(candidates))
        scores = np.exp(np.clip(workload.reference - predicted, -50.0, 50.0))
        scores[~known] = np.median(scores[known])
        return scores


@derived_object
class GradientSearch(ms.search_strategy.PySearchStrategy):  # type: ignore[misc]
    """Felix's gradient search as a MetaSchedule strategy; see the module docstring.

    Args:
        model: the `MLPCostModel` that is given to `ms.tune_tir`, too, or a checkpoint or module
            for a model of its own; the one shipped for the target if left out.
        options: sizes of a round.
        seed: everything random follows from it; MetaSchedule's seed if left out.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        options: gradient.GradientOptions | None = None,
        seed: int | None = None,
    ) -> None:
        self._model = model
        self._options = options
        self._seed = seed
        self._context: _Context | None = None
        self._state: _State | None = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Remember what is to be tuned, without keeping the context alive."""
        self._context = _Context(
            context.mod, context.target, context.space_generator, str(context.task_name),
            int(context.rand_state),
        )  # fmt: skip
        self._state = None

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Make formulas of the design spaces.

        Raises:
            TuningError: none of them can be modelled or has a legal schedule.
            WorkloadError, TargetError: the module or the target cannot be modelled.
        """
        context = self._context
        if context is None:
            raise errors.TuningError("the strategy was not initialised with a TuneContext")
        shared = isinstance(self._model, MLPCostModel)
        seed = context.rand_state % 2**31 if self._seed is None else self._seed
        online = self._model.online if shared else OnlineModel(self._model, seed, True)
        taught = shared and cost_model is not None and cost_model.same_as(self._model)
        workload = online.workload(context)
        sketches = _legal_sketches(workload, design_spaces)
        search = gradient.GradientSearch(sketches, _unset, self._options, seed)
        self._state = _State(online, workload, search, taught, max_trials, num_trials_per_iter)

    def post_tuning(self) -> None:
        """Forget everything."""
        self._state = None

    def generate_measure_candidates(self) -> list[Any] | None:
        """The candidates of a round; None when the trials are spent or nothing new is left."""
        return self._running().candidates() or None

    def notify_runner_results(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn what was measured."""
        self._running().learn(candidates, results)

    def clone(self) -> Any:
        """A strategy with the same options; a shared model stays shared."""
        return GradientSearch(self._model, options=self._options, seed=self._seed)

    def _running(self) -> _State:
        if self._state is None:
            raise errors.TuningError("the strategy is used before pre_tuning")
        return self._state


@dataclasses.dataclass(frozen=True, slots=True)
class _Context:
    """The part of a TuneContext that the strategy keeps."""

    mod: Any
    target: Any
    space_generator: Any
    task_name: str
    rand_state: int


@dataclasses.dataclass(slots=True)
class _State:
    """The strategy between pre_tuning and post_tuning."""

    online: OnlineModel
    workload: Workload
    search: gradient.GradientSearch
    #: whether TVM updates the model (it is the tuner's cost model as well)
    taught: bool
    max_trials: int
    per_round: int
    n_sent: int = 0
    #: hashes of the programs sent: other decisions may give the same one
    programs: set[int] = dataclasses.field(default_factory=set)

    def candidates(self) -> list[Any]:
        n = min(self.per_round, self.max_trials - self.n_sent)
        live = self.online.live(self.workload)
        self.search.model = _frozen(live)
        made: list[Any] = []
        for _ in range(_MAX_TRIES):
            suggestions = self.search.suggest(n - len(made))
            made += filter(None, map(self._candidate, suggestions))
            if len(made) >= n or not suggestions:
                break
        self.n_sent += len(made)
        return made

    def learn(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        for candidate, result in zip(candidates, results, strict=True):
            located = self.workload.scorer.find(candidate.sch.trace)
            if located is None:
                continue
            position = self._position(located[0])
            if position is not None:
                suggestion = interface.Suggestion(position, located[1])
                self.search.update([(suggestion, _measurement(result))])
        if not self.taught:
            self.online.learn(self.workload, _latencies(candidates, results))

    def _candidate(self, suggestion: interface.Suggestion) -> Any:
        """The measure candidate of a suggestion; None if TVM rejects or has it already."""
        sketch: Any = self.search.sketches[suggestion.sketch_index]
        try:
            schedule = sketch.schedule(suggestion.decisions)
        except errors.InvalidSchedule as error:
            failed = protocol.Measurement(error=protocol.ErrorClass.BUILD, message=str(error))
            self.search.update([(suggestion, failed)])
            return None
        program = tvm_ffi.structural_hash(schedule.mod)
        if program in self.programs:
            return None
        self.programs.add(program)
        info = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        return ms.search_strategy.MeasureCandidate(schedule, info)

    def _position(self, number: int) -> int | None:
        """Position in the search of a sketch that the scorer knows by number."""
        wanted = self.workload.scorer.sketches[number]
        return next((i for i, s in enumerate(self.search.sketches) if s is wanted), None)


def _legal_sketches(workload: Workload, design_spaces: Sequence[Any]) -> list[Sketch]:
    """Sketches of the design spaces that can be modelled and have legal schedules."""
    kept, reasons = [], []
    for number, design_space in enumerate(design_spaces):
        try:
            sketch = workload.scorer.sketch_of(design_space.trace)
            sketch.sample(1, seed=1, max_structures=1)
            kept.append(sketch)
        except (errors.UnsupportedSchedule, errors.InvalidSchedule) as error:
            _log.warning("design space %d left out: %s", number, error)
            reasons.append(str(error))
    if not kept:
        raise errors.TuningError(
            f"no design space of {workload.task.name} can be searched: {'; '.join(reasons)}"
        )
    return kept


def _latencies(candidates: Sequence[Any], results: Sequence[Any]) -> list[tuple[Any, float]]:
    """(trace, latency_us) of the candidates that ran."""
    measured = ((c, _measurement(r)) for c, r in zip(candidates, results, strict=True))
    return [(c.sch.trace, m.latency_us) for c, m in measured if m.latency_us is not None]


def _measurement(result: Any) -> protocol.Measurement:
    """A runner's result; TVM's sentinel for a failed run becomes an error."""
    run_s = [float(seconds) for seconds in result.run_secs or ()]
    if run_s and 0 < statistics.median(run_s) < _FAILED_RUN_S:
        return protocol.Measurement.timed([seconds * 1e6 for seconds in run_s])
    message = str(result.error_msg or "no run time").strip()
    return protocol.Measurement(error=protocol.ErrorClass.LAUNCH, message=message)


def _frozen(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).eval().requires_grad_(False)


def _unset(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    raise errors.TuningError("the cost model is not loaded yet")


def _register_errors(register: Callable[[str, type], Any]) -> None:
    """Let Felix's errors keep their types when TVM passes them on."""
    waiting: list[type] = [errors.FelixError]
    while waiting:
        kind = waiting.pop()
        register(kind.__name__, kind)
        waiting += kind.__subclasses__()


_register_errors(tvm_ffi.register_error)
