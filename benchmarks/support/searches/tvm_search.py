"""TVM's own evolutionary search with the cost model that Felix uses, for comparisons.

MetaSchedule's `EvolutionarySearch` chooses what to measure, on the same sketches; schedules are
built, checked and timed by Felix's pool, so that a comparison sees the search and nothing else.
It is driven as `ms.tune_tir` does: candidates in batches of the round size, measurements in a
database from which it breeds, its own random numbers (a resumed run therefore goes on from the
same measurements, but not with the same numbers).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from felix.metaschedule import trace_lookup
from felix.search import base, interface
from felix.space.trace_sketch import TraceSketch
from felix.target import cpu
from felix.tir import design_space

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace

#: More trials than any run has; TVM's strategy stops there.
_MAX_TRIALS = 1 << 30
#: Evolutions of one round before a space counts as exhausted.
_MAX_TRIES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class TVMEvolutionOptions:
    """Sizes of TVM's search; the defaults are its own."""

    population: int = 512
    generations: int = 4
    #: members of the first population that have not been measured; fewer end the search
    init_unmeasured: int = 50
    mutate_probability: float = 0.85
    eps_greedy: float = 0.05
    #: threads that apply traces; None: one a core
    threads: int | None = None


class TVMEvolutionarySearch(base.BaseSearch):
    """MetaSchedule's EvolutionarySearch (`felix.search.interface.Search`).

    Args:
        sketches: trace sketches of one task.
        model: predicts ln(latency_us).
        options: sizes.
        seed: of TVM's random numbers.
    """

    kind = "tvm-evolutionary"

    def __init__(
        self,
        sketches: Sequence[TraceSketch],
        model: interface.CostModels,
        options: TVMEvolutionOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sketches, model, seed)
        self.options = options or TVMEvolutionOptions()
        self._traces = trace_lookup.TraceScorer(self.scorer, list(sketches))
        self._task = sketches[0].task
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._task.mod)
        self._spare: list[tuple[interface.Key, ms.search_strategy.MeasureCandidate]] = []
        self._strategy: ms.search_strategy.EvolutionarySearch | None = None
        self._context: ms.TuneContext | None = None

    @property
    def _threads(self) -> int:
        return self.options.threads or cpu.available_cores()

    def tell(self, results: Sequence[tuple[interface.Candidate, float | None]]) -> None:
        """Learn measurements."""
        super().tell(results)
        for candidate, latency_us in results:
            self._learn(candidate.key, latency_us)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state: what was measured, with new random numbers."""
        super().load_state_dict(state)
        for key, latency_us in self.history.measured.items():
            self._learn(key, latency_us)

    def _ask(self, n: int, rng: np.random.Generator) -> list[interface.Candidate]:
        if self._strategy is None:
            self._start(n, int(rng.integers(1, 2**31 - 1)))
        assert self._strategy is not None
        for _ in range(_MAX_TRIES):
            if len(self._spare) >= n:
                break
            self._take(self._strategy.generate_measure_candidates() or ())
        chosen, self._spare = self._spare[:n], self._spare[n:]
        predicted_us = self._predicted_us([candidate.sch.trace for _, candidate in chosen])
        return [
            interface.Candidate(*key, latency_us)
            for (key, _), latency_us in zip(chosen, predicted_us, strict=True)
        ]

    def _start(self, per_round: int, seed: int) -> None:
        options = self.options
        self._context = design_space.tune_context(
            self._task.mod,
            self._task.target,
            name=self._task.name,
            strategy=ms.search_strategy.EvolutionarySearch(
                population_size=options.population,
                init_min_unmeasured=min(options.init_unmeasured, options.population),
                genetic_num_iters=options.generations,
                genetic_mutate_prob=options.mutate_probability,
                eps_greedy=options.eps_greedy,
            ),
            seed=seed,
            num_threads=self._threads,
        )
        self._strategy = self._context.search_strategy
        spaces = [
            s.apply_stock(s.sample(1, seed=seed)[0])
            for s in self._traces.sketches
            if self._is_own(s)
        ]
        model = _Adapter(self._traces)
        self._strategy.pre_tuning(_MAX_TRIALS, per_round, spaces, self._database, model)

    def _is_own(self, sketch: TraceSketch) -> bool:
        """Whether a sketch is of the task's module: TVM searches no other at the same time."""
        return bool(sketch.mod.same_as(self._task.mod))

    def _take(self, generated: Sequence[ms.search_strategy.MeasureCandidate]) -> None:
        """Store the candidates that are new; TVM compares programs, and only those it proposed."""
        waiting = {key for key, _ in self._spare}
        for candidate in generated:
            key = self._traces.find(candidate.sch.trace)
            if key is None or key in self.history or key in waiting:
                continue
            waiting.add(key)
            self._spare.append((key, candidate))

    def _learn(self, key: interface.Key, latency_us: float | None) -> None:
        if latency_us is None or not self._is_own(self._traces.sketches[key[0]]):
            return
        info = ms.arg_info.ArgInfo.from_entry_func(self._task.mod, remove_preproc=True)
        self._database.commit_tuning_record(
            ms.database.TuningRecord(
                trace=self._traces.sketches[key[0]].with_decisions(key[1]),
                workload=self._workload,
                run_secs=[latency_us * 1e-6],
                target=self._task.target,
                args_info=info,
            )
        )

    def _predicted_us(self, traces: Sequence[Trace]) -> list[float | None]:
        values = self._traces.predict(traces).tolist()
        return [None if math.isnan(v) else math.exp(min(max(v, -50.0), 50.0)) for v in values]


@derived_object
class _Adapter(ms.cost_model.PyCostModel):  # type: ignore[misc]
    """A Felix cost model as TVM's: scores 1 / predicted latency, unknown traces the median."""

    def __init__(self, scorer: trace_lookup.TraceScorer) -> None:
        self._scorer = scorer

    def predict(
        self, context: ms.TuneContext, candidates: Sequence[ms.search_strategy.MeasureCandidate]
    ) -> NDArray[np.float64]:
        """Scores, higher is better."""
        predicted = self._scorer.predict([c.sch.trace for c in candidates])
        known = np.isfinite(predicted)
        if not known.any():
            return np.ones(len(candidates))
        predicted[~known] = np.median(predicted[known])
        return np.exp(-np.clip(predicted, -50.0, 50.0))
