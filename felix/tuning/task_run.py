"""One task during a run: its search, what it measured, and its part of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeAlias

from felix import errors
from felix.builder import payload
from felix.database import records, session
from felix.measure.measurer import Measurer
from felix.runner import protocol
from felix.search import interface
from felix.target import cpu
from felix.tuning import pacing, results, task_search

if TYPE_CHECKING:
    from felix.space.sketch import Sketch
    from felix.task import Task
    from felix.templates.generated import Program


#: A candidate's program, or why it has none.
Applied: TypeAlias = "payload.Buildable | errors.InvalidSchedule"
#: Threads that make schedules.
MAX_THREADS = 8


class TaskRun(task_search.TaskSearch):
    """A task of the run, by its `index`: its search, and what is measured of it."""

    def __init__(self, index: int, task: Task, measurer: Measurer) -> None:
        super().__init__(index, task)
        self.measurer = measurer
        #: trials, and the measurements of those that were measured again
        self.records: list[records.Trial] = []
        self.repeats: list[records.Trial] = []
        #: the trial that counts of each candidate (`records.effective_measurements`)
        self.effective: dict[records.Key, records.Trial] = {}
        #: candidates by the hash of their program: other decisions may give the same one
        self._programs: dict[str, records.Key] = {}
        #: duplicates of a candidate's program, which wait for its measurement
        self._duplicates: dict[records.Key, list[interface.Candidate]] = {}
        #: whose measurement was lost with a worker or a device, once
        self._lost: set[interface.Key] = set()
        self._curve: list[tuple[int, float, float]] = []
        self.best: records.Trial | None = None
        self.n_rounds = 0
        #: best latency that the allocator does not know yet
        self.recent_us: float | None = None
        #: to be measured before what the search chooses
        self._first: list[interface.Candidate] = []
        #: why it is not tuned; None if it is
        self.skipped: str | None = None
        #: candidates that TVM rejected, and what it said of the first
        self._n_rejected = 0
        self._first_rejection = ""
        #: of the unscheduled program, the latest of several; None if it was not measured (yet)
        self.baseline: protocol.Measurement | None = None

    @property
    def best_us(self) -> float | None:
        """Best latency so far."""
        return None if self.best is None else self.best.latency_us

    def set_first(self, schedules: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Schedules to measure before what the search chooses; those of no sketch are left out."""
        positions = {sketch.key: i for i, sketch in enumerate(self.sketches)}
        for sketch_key, decisions in schedules:
            position = positions.get(sketch_key)
            if position is None or not _fits(self.sketches[position], decisions):
                continue
            candidate = interface.Candidate(position, tuple(decisions))
            if candidate.key not in {each.key for each in self._first}:
                self._first.append(candidate)

    def take_first(self, n: int) -> list[interface.Candidate]:
        """Up to `n` of those schedules that the search does not know yet."""
        taken: list[interface.Candidate] = []
        while self._first and len(taken) < n:
            candidate = self._first.pop(0)
            if candidate.key not in self.search.history:
                taken.append(candidate)
        self.search.history.propose(taken)
        return taken

    def programs(
        self,
        candidates: Sequence[interface.Candidate],
        compute_guard: pacing.ComputeGuard,
        made_elsewhere: Mapping[interface.Key, Applied],
    ) -> list[tuple[interface.Candidate, payload.Buildable]]:
        """What is measured of each; what TVM rejects is remembered as failed and left out.

        Several at a time: TVM applies a trace without Python's lock, in 30 ms and more each.

        Args:
            candidates: of the task's search.
            compute_guard: of the run.
            made_elsewhere: programs that a process made.
        """
        programs = []
        width = min(MAX_THREADS, cpu.available_cores())
        with compute_guard.computing("schedule"), futures.ThreadPoolExecutor(width) as threads:
            for first in range(0, len(candidates), width):
                compute_guard.yield_to_timing()
                some = candidates[first : first + width]
                made_here = threads.map(
                    lambda each: (
                        made_elsewhere.get(each.key)
                        or applied(self.sketches[each.sketch_index], each)
                    ),
                    some,
                )
                for candidate, program in zip(some, made_here, strict=True):
                    if isinstance(program, errors.InvalidSchedule):
                        self.search.tell([(candidate, None)])
                        self._first_rejection = self._first_rejection or str(program)
                        self._n_rejected += 1
                    elif not self._set_aside_duplicate(candidate, program):
                        programs.append((candidate, program))
        return programs

    def _set_aside_duplicate(
        self, candidate: interface.Candidate, program: payload.Buildable
    ) -> bool:
        """Let a candidate that gives a known program share its measurement; whether it does."""
        digest = payload.fingerprint(program)
        if digest is None:
            return False
        first = self._programs.setdefault(digest, candidate.key)
        if first == candidate.key:
            return False
        measured = self.search.history.measured
        if first in measured:
            self.search.tell([(candidate, measured[first])])
        else:
            self._duplicates.setdefault(first, []).append(candidate)
        return True

    def add(self, trial: records.Trial) -> bool:
        """Take in a trial that is measured, or a candidate that was measured again.

        Returns:
            Whether a trial is the new best.
        """
        if trial.repeat:
            self.repeats.append(trial)
            records.add_effective(self.effective, trial)
            self.best = records.fastest(self.effective, is_remeasured=True)
            return False
        measurement = trial.measured
        self.records.append(trial)
        measured = self.candidate(trial)
        if measurement.error is not protocol.ErrorClass.INFRASTRUCTURE:
            same = [measured, *self._duplicates.pop(measured.key, [])]
            self.search.tell([(each, measurement.latency_us) for each in same])
        elif measured.key not in self._lost:  # once more, not for ever: it may be what breaks it
            self._lost.add(measured.key)
            self.search.forget_pending([measured.key])
        latency_us = measurement.latency_us
        if latency_us is None or not measurement.checked:
            return False
        records.add_effective(self.effective, trial)
        self.recent_us = min(latency_us, self.recent_us or latency_us)
        if self.best_us is not None and self.best_us <= latency_us:
            return False
        self.best = trial
        self._curve.append((len(self.records), trial.elapsed_s, latency_us))
        return True

    def replay(self, trial: records.Trial) -> None:
        """Take in a trial of an earlier session."""
        self.add(trial)
        if not trial.repeat:
            self.n_rounds = max(self.n_rounds, trial.round + 1)

    def take_recent_us(self) -> float | None:
        """Best latency since the last call; None without a new one."""
        recent_us, self.recent_us = self.recent_us, None
        return recent_us

    def program_of(self, trial: records.Trial) -> Program:
        """What is measured of a trial's candidate."""
        return self._sketch_of(trial).program(trial.decisions)

    def _sketch_of(self, trial: records.Trial) -> Sketch:
        return self.sketches[self.positions[trial.sketch_index]]

    def trial(self, candidate: interface.Candidate) -> records.Trial:
        """A candidate of the current round as a trial that is asked for."""
        sketch = self.sketches[candidate.sketch_index]
        return records.Trial(
            task_key=self.task.key,
            task_name=self.task.name,
            sketch_index=sketch.index,
            sketch_key=sketch.key,
            decisions=candidate.decisions,
            predicted_us=candidate.predicted_us,
            round=self.n_rounds,
            versions=records.versions(),
            variant=str(sketch.variant),
        )

    def candidate(self, trial: records.Trial) -> interface.Candidate:
        """A trial's candidate as the search counts its sketches."""
        position = self.positions[trial.sketch_index]
        return interface.Candidate(position, trial.decisions, trial.predicted_us)

    def is_origin_of(self, trial: records.Trial) -> bool:
        """Whether a stored trial is of this task and its sketches are still the same.

        Raises:
            RecordError: it is of this task, but its sketch is another one by now.
        """
        if trial.task_key != self.task.key:
            return False
        position = self.positions.get(trial.sketch_index)
        if position is None or self.sketches[position].key != trial.sketch_key:
            raise errors.RecordError(
                f"{self.task.name}: the records are of other sketches than this version makes"
            )
        return True

    def result(self, reason: str, breakdown: pacing.Breakdown) -> results.TuneResult:
        """The task's result as it stands."""
        tuned = None
        if self.best is not None:
            tuned = results.Best(self.best, self._sketch_of(self.best))
        best = None
        if self.skipped is None:
            best = results.faster(self.task, tuned, self.baseline)
        curve = list(self._curve)
        if curve and len(self.records) > curve[-1][0]:  # to the end of the run
            curve.append((len(self.records), self.records[-1].elapsed_s, curve[-1][2]))
        if curve and self.repeats and self.best_us is not None:  # what measuring again gave
            curve.append((len(self.records), self.repeats[-1].elapsed_s, self.best_us))
        if curve and best is not None and best is not tuned:
            curve.append((*curve[-1][:2], best.latency_us))
        return results.TuneResult(
            task=self.task,
            records=tuple(self.records),
            repeats=tuple(self.repeats),
            curve=tuple(curve),
            best_or_none=best,
            tuned_or_none=tuned,
            unscheduled_us=None if self.baseline is None else self.baseline.latency_us,
            reason=reason,
            breakdown=breakdown,
            skipped=self.skipped,
            rejection=f"TVM rejected {self._n_rejected} candidates: {self._first_rejection}"
            if self._n_rejected
            else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint's part of this task."""
        return {
            "n_rounds": self.n_rounds,
            "recent_us": self.recent_us,
            "programs": [[p, index, list(d)] for p, (index, d) in self._programs.items()],
            "search": self.search.state_dict() if self.is_open else None,
            "unscheduled": None if self.baseline is None else session.to_store(self.baseline),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the task must be open if it was then."""
        self.n_rounds, self.recent_us = int(state["n_rounds"]), state["recent_us"]
        if state["search"] is not None:
            self.search.load_state_dict(state["search"])
            self.search.forget_pending()
            programs = {str(p): (int(i), tuple(map(int, d))) for p, i, d in state["programs"]}
            measured = self.search.history.measured
            self._programs = {p: key for p, key in programs.items() if key in measured}
        if state["unscheduled"] is not None:
            self.baseline = session.stored_baseline(state["unscheduled"])


def applied(sketch: Sketch, candidate: interface.Candidate) -> Applied:
    """The program of one of a sketch's candidates."""
    try:
        return sketch.program(candidate.decisions)
    except errors.InvalidSchedule as error:
        return error


def _fits(sketch: Sketch, decisions: Sequence[int]) -> bool:
    """Whether decisions from elsewhere are ones of this sketch, and can be modelled."""
    from felix.space import coordinates

    if len(decisions) != len(sketch.variables):
        return False
    try:
        sketch.formulas.of_structure(coordinates.structure(sketch.variables, decisions))
        return sketch.is_applicable(decisions)
    except (errors.DecisionError, errors.UnsupportedSchedule):
        return False
