"""Felix's search as a MetaSchedule plug-in (`GradientSearch`).

A design space with an instruction Felix does not know (tensor intrinsics, say) is left out, with
a warning; if none remains, tuning ends with an error. A candidate that failed is not proposed
again.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import tvm
import tvm_ffi
from torch import nn
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from felix import errors
from felix.metaschedule import cost_model as ms_cost_model
from felix.search import gradient, interface
from felix.space.trace_sketch import TraceSketch

_log = logging.getLogger("felix.metaschedule")

#: Searches of one round before a space counts as exhausted: TVM may reject what was proposed.
_MAX_TRIES = 3

#: A shared cost model, a checkpoint or a module; None: the checkpoint shipped for the target.
ModelLike = ms_cost_model.MLPCostModel | str | pathlib.Path | nn.Module | None


@derived_object
class GradientSearch(ms.search_strategy.PySearchStrategy):  # type: ignore[misc]
    """Felix's search as a MetaSchedule strategy; see `felix.metaschedule`.

    Args:
        model: the `MLPCostModel` that is given to `ms.tune_tir`, too, or a checkpoint or module
            for a model of its own; the one shipped for the target if left out.
        options: sizes of a round.
        seed: everything random follows from it; MetaSchedule's seed if left out.
    """

    def __init__(
        self,
        model: ModelLike = None,
        *,
        options: gradient.GradientOptions | None = None,
        seed: int | None = None,
    ) -> None:
        self._model = model
        self._options = options
        self._seed = seed
        self._context: ms_cost_model.Context | None = None
        self._state: _State | None = None

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Remember what is to be tuned, without keeping the context alive."""
        self._context = ms_cost_model.Context.of(context)
        self._state = None

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[tvm.s_tir.Schedule],
        database: ms.database.Database | None = None,
        cost_model: ms.cost_model.CostModel | None = None,
    ) -> None:
        """Make formulas of the design spaces.

        Raises:
            TuningError: none of them can be modelled or has a legal schedule.
            WorkloadError, TargetError: the module or the target cannot be modelled.
        """
        context = self._context
        if context is None:
            raise errors.TuningError("the strategy was not initialised with a TuneContext")
        seed = context.rand_state % 2**31 if self._seed is None else self._seed
        if isinstance(self._model, ms_cost_model.MLPCostModel):
            online = self._model.online
            updated_by_tvm = cost_model is not None and cost_model.same_as(self._model)
        else:
            online = ms_cost_model.OnlineModel(self._model, seed, True)
            updated_by_tvm = False
        workload = online.workload(context)
        sketches = _legal_sketches(workload, design_spaces)
        self._state = _State(
            online=online,
            updated_by_tvm=updated_by_tvm,
            workload=workload,
            sketches=sketches,
            search=gradient.GradientSearch(sketches, ms_cost_model.no_model, self._options, seed),
            max_trials=max_trials,
            per_round=num_trials_per_iter,
        )

    def post_tuning(self) -> None:
        """Forget everything."""
        self._state = None

    def generate_measure_candidates(self) -> list[ms.search_strategy.MeasureCandidate] | None:
        """The candidates of a round; None when the trials are spent or nothing new is left."""
        return self._running().candidates() or None

    def notify_runner_results(
        self,
        candidates: Sequence[ms.search_strategy.MeasureCandidate],
        results: Sequence[ms.runner.RunnerResult],
    ) -> None:
        """Learn what was measured."""
        self._running().learn(candidates, results)

    def clone(self) -> GradientSearch:
        """A strategy with the same options; a shared model stays shared."""
        return GradientSearch(self._model, options=self._options, seed=self._seed)

    def _running(self) -> _State:
        if self._state is None:
            raise errors.TuningError("the strategy is used before pre_tuning")
        return self._state


@dataclasses.dataclass(slots=True, kw_only=True)
class _State:
    """The strategy between pre_tuning and post_tuning."""

    online: ms_cost_model.OnlineModel
    #: whether the model is the tuner's cost model as well
    updated_by_tvm: bool
    workload: ms_cost_model.Workload
    sketches: list[TraceSketch]
    search: gradient.GradientSearch
    max_trials: int
    per_round: int
    n_sent: int = 0
    #: hashes of the programs sent: other decisions may give the same one
    programs: set[int] = dataclasses.field(default_factory=set)

    def candidates(self) -> list[ms.search_strategy.MeasureCandidate]:
        n = min(self.per_round, self.max_trials - self.n_sent)
        model = copy.deepcopy(self.online.live(self.workload))
        self.search.model = model.eval().requires_grad_(False)
        candidates: list[ms.search_strategy.MeasureCandidate] = []
        for _ in range(_MAX_TRIES):
            asked = self.search.ask(n - len(candidates))
            candidates += filter(None, map(self._measure_candidate, asked))
            if len(candidates) >= n or not asked:
                break
        self.n_sent += len(candidates)
        return candidates

    def learn(
        self,
        candidates: Sequence[ms.search_strategy.MeasureCandidate],
        results: Sequence[ms.runner.RunnerResult],
    ) -> None:
        for candidate, result in zip(candidates, results, strict=True):
            located = self.workload.scorer.find(candidate.sch.trace)
            if located is None:
                continue
            sketch = self.workload.scorer.sketches[located[0]]
            position = next((i for i, s in enumerate(self.sketches) if s is sketch), None)
            if position is not None:
                candidate = interface.Candidate(position, located[1])
                self.search.tell([(candidate, ms_cost_model.measurement(result).latency_us)])
        if not self.updated_by_tvm:
            self.online.learn(self.workload, ms_cost_model.latencies_us(candidates, results))

    def _measure_candidate(
        self, candidate: interface.Candidate
    ) -> ms.search_strategy.MeasureCandidate | None:
        """What TVM measures of a candidate; None if TVM rejects or has it already."""
        sketch = self.sketches[candidate.sketch_index]
        try:
            schedule = sketch.schedule(candidate.decisions)
        except errors.InvalidSchedule:
            self.search.tell([(candidate, None)])
            return None
        program = tvm_ffi.structural_hash(schedule.mod)
        if program in self.programs:
            return None
        self.programs.add(program)
        info = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        return ms.search_strategy.MeasureCandidate(schedule, info)


def _legal_sketches(
    workload: ms_cost_model.Workload, design_spaces: Sequence[tvm.s_tir.Schedule]
) -> list[TraceSketch]:
    """Sketches of the design spaces that can be modelled and have legal schedules."""
    legal, reasons = [], []
    for number, design_space in enumerate(design_spaces):
        try:
            sketch = workload.scorer.sketch_of(design_space.trace)
            sketch.sample(1, seed=1, max_structures=1)
            legal.append(sketch)
        except (errors.UnsupportedSchedule, errors.InvalidSchedule) as error:
            _log.warning("design space %d left out: %s", number, error)
            reasons.append(str(error))
    if not legal:
        raise errors.TuningError(
            f"no design space of {workload.task.name} can be searched: {'; '.join(reasons)}"
        )
    return legal
