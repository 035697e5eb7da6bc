"""One task during a run: its search, what it measured, and its part of the checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

import numpy as np

from felix import errors, records
from felix.measure import protocol
from felix.search import interface
from felix.target import cpu
from felix.tuning import options as options_module
from felix.tuning import pacing, results

if TYPE_CHECKING:
    from felix.task import Task


#: Threads that make schedules.
MAX_THREADS = 8
#: What makes two candidates of a task the same.
Key = tuple[int, tuple[int, ...]]


@dataclasses.dataclass(slots=True, eq=False)
class Flight:
    """A candidate that is being built or run."""

    job: Job
    suggestion: interface.Suggestion
    future: futures.Future[protocol.Measurement]
    round: int
    #: when its measurement was there, in the run's elapsed seconds; None until then
    done_s: float | None = None
    #: whether it is in the books
    kept: bool = False


class Job:
    """A task of the run, by its `index`. `open` makes the sketches, when its turn comes."""

    def __init__(self, index: int, task: Task, measurer: protocol.Measurer) -> None:
        self.index = index
        self.task = task
        self.measurer = measurer
        self.search: Any = None
        #: those with legal schedules; a search counts in this list
        self.sketches: list[Any] = []
        self._position: dict[int, int] = {}
        #: trials, and the measurements of the finals
        self.records: list[records.Record] = []
        self.repeats: list[records.Record] = []
        #: what counts of each candidate that ran (`records.standing`)
        self.standing: dict[Key, records.Record] = {}
        #: candidates by the hash of their program: other decisions may give the same one
        self.programs: dict[str, Key] = {}
        self._twins: dict[Key, list[interface.Suggestion]] = {}
        self.curve: list[tuple[int, float, float]] = []
        self.best: records.Record | None = None
        self.n_rounds = 0
        #: best latency since the allocator was told last
        self.recent_us: float | None = None
        self.unscheduled: protocol.Measurement | None = None
        self.pending_baseline: futures.Future[protocol.Measurement] | None = None

    @property
    def best_us(self) -> float | None:
        """Best latency so far."""
        return None if self.best is None else self.best.measurement.latency_us

    def open(self, strategy: str, model: Any, options: Any, seed: int) -> list[str]:
        """Make the sketches and the search; says which sketches are left out and why.

        Raises:
            TuningError: the task has no sketch with legal schedules.
        """
        left_out = []
        for sketch in sketches_of(self.task):
            try:
                sketch.sample(1, seed=1, max_structures=1)  # makes its formulas, too
                self.sketches.append(sketch)
            except (errors.InvalidSchedule, errors.UnsupportedSchedule) as error:
                left_out.append(f"{self.task.name}: sketch {sketch.index} left out: {error}")
        if not self.sketches:
            raise errors.TuningError(
                "; ".join(left_out) or f"{self.task.name} has no design space for this target"
            )
        self._position = {sketch.index: i for i, sketch in enumerate(self.sketches)}
        own = int(np.random.SeedSequence([seed, self.index]).generate_state(1)[0])
        self.search = options_module.make_search(strategy, self.sketches, model, options, own)
        return left_out

    def schedules(
        self, suggestions: Sequence[interface.Suggestion], compute_guard: pacing.ComputeGuard
    ) -> list[tuple[interface.Suggestion, Any]]:
        """The scheduled modules; what TVM rejects is remembered as failed and left out.

        Several at a time: TVM applies a trace without Python's lock, in 30 ms and more each.
        """
        made = []
        width = min(MAX_THREADS, cpu.available_cores())
        with compute_guard.computing("schedule"), futures.ThreadPoolExecutor(width) as threads:
            for first in range(0, len(suggestions), width):
                compute_guard.yield_to_timing()
                some = suggestions[first : first + width]
                for suggestion, found in zip(some, threads.map(self._schedule, some), strict=True):
                    if isinstance(found, errors.InvalidSchedule):
                        failed = protocol.Measurement(
                            error=protocol.ErrorClass.BUILD, message=str(found)
                        )
                        self.search.update([(suggestion, failed)])
                    elif not self._is_twin(suggestion, found):
                        made.append((suggestion, found))
        return made

    def _schedule(self, suggestion: interface.Suggestion) -> Any:
        """The scheduled module, or why there is none."""
        sketch = self.sketches[suggestion.sketch_index]
        try:
            return sketch.schedule(np.asarray(suggestion.decisions, np.int64)).mod
        except errors.InvalidSchedule as error:
            return error

    def _is_twin(self, suggestion: interface.Suggestion, mod: Any) -> bool:
        """Whether another candidate gives the same program; it then shares its measurement."""
        program = fingerprint(mod)
        if program is None:
            return False
        first = self.programs.setdefault(program, suggestion.key)
        if first == suggestion.key:
            return False
        known = self.search.history.measured
        if first in known:
            self.search.update([(suggestion, _Shared(known[first]))])
        else:
            self._twins.setdefault(first, []).append(suggestion)
        return True

    def keep(self, record: records.Record) -> bool:
        """Take one measurement into the books; whether it is the new best."""
        if record.repeat:
            self._keep_repeat(record)
            return False
        measurement = record.measurement
        self.records.append(record)
        if measurement.error is not protocol.ErrorClass.INFRASTRUCTURE:
            own = self.suggestion(record)
            same = [own, *self._twins.pop(own.key, [])]
            self.search.update([(suggestion, measurement) for suggestion in same])
        latency_us = measurement.latency_us
        if latency_us is None or not measurement.checked:
            return False
        self.standing = records.standing([*self.standing.values(), record])
        self.recent_us = min(latency_us, self.recent_us or latency_us)
        if self.best_us is not None and self.best_us <= latency_us:
            return False
        self.best = record
        self.curve.append((len(self.records), record.elapsed_s, latency_us))
        return True

    def _keep_repeat(self, record: records.Record) -> None:
        self.repeats.append(record)
        self.standing = records.standing([*self.standing.values(), record])
        self.best = records.fastest(self.standing, is_final=True)

    def sketch_of(self, record: records.Record) -> Any:
        """The sketch of a record's candidate."""
        return self.sketches[self._position[record.sketch_index]]

    def suggestion(self, record: records.Record) -> interface.Suggestion:
        """A record's candidate as the search counts its sketches."""
        position = self._position[record.sketch_index]
        return interface.Suggestion(position, record.decisions, record.predicted_us)

    def owns(self, record: records.Record) -> bool:
        """Whether a stored record is of this task and its sketches are still the same.

        Raises:
            RecordError: it is of this task, but its sketch is another one by now.
        """
        if record.task_key != self.task.key:
            return False
        position = self._position.get(record.sketch_index)
        if position is None or self.sketches[position].key != record.sketch_key:
            raise errors.RecordError(
                f"{self.task.name}: the records are of other sketches than this version makes"
            )
        return True

    def result(self, reason: str, breakdown: pacing.Breakdown) -> results.TuneResult:
        """The task's result as it stands."""
        found = None
        if self.best is not None:
            found = results.Best(self.best, self.sketch_of(self.best))
        curve = list(self.curve)
        if curve and len(self.records) > curve[-1][0]:  # to the end of the run
            curve.append((len(self.records), self.records[-1].elapsed_s, curve[-1][2]))
        if curve and self.repeats and self.best_us is not None:  # what the finals gave
            curve.append((len(self.records), self.repeats[-1].elapsed_s, self.best_us))
        return results.TuneResult(
            task=self.task,
            records=tuple(self.records),
            repeats=tuple(self.repeats),
            curve=tuple(curve),
            found=found,
            unscheduled_us=None if self.unscheduled is None else self.unscheduled.latency_us,
            reason=reason,
            breakdown=breakdown,
        )

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint's part of this task."""
        return {
            "n_rounds": self.n_rounds,
            "recent_us": self.recent_us,
            "programs": [[p, index, list(d)] for p, (index, d) in self.programs.items()],
            "search": None if self.search is None else self.search.state_dict(),
            "unscheduled": None
            if self.unscheduled is None
            else {
                "latency_us": self.unscheduled.latency_us,
                "message": self.unscheduled.message,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the task must be open if it was then."""
        self.n_rounds, self.recent_us = int(state["n_rounds"]), state["recent_us"]
        if state["search"] is not None:
            self.search.load_state_dict(state["search"])
            self.search.forget_pending()
            programs = {str(p): (int(i), tuple(map(int, d))) for p, i, d in state["programs"]}
            known = self.search.history.measured
            self.programs = {p: key for p, key in programs.items() if key in known}
        if state["unscheduled"] is not None:
            self.unscheduled = _baseline(**state["unscheduled"])


@dataclasses.dataclass(frozen=True, slots=True)
class _Shared:
    """The measurement of a candidate with the same program."""

    latency_us: float | None


def key_of(record: records.Record) -> Key:
    """Which candidate of its task a record is of."""
    return record.sketch_index, record.decisions


def fingerprint(mod: Any) -> str | None:
    """Hash of a scheduled module, the same for equal programs; None for what is no module."""
    import tvm
    import tvm_ffi

    if not isinstance(mod, tvm.IRModule):
        return None
    return f"{tvm_ffi.structural_hash(mod) & (2**64 - 1):016x}"


def _baseline(latency_us: float | None, message: str) -> protocol.Measurement:
    error = protocol.ErrorClass.LAUNCH if latency_us is None else None
    return protocol.Measurement(latency_us=latency_us, error=error, message=message)


def sketches_of(task: Task) -> list[Any]:
    """All sketches of a task."""
    from felix.sketch import sketch as sketching

    return list(sketching.sketches(task))
