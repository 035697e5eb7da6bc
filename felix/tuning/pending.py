"""What is being measured: candidates, completed in any order, and unscheduled programs.

Measurements become records: stored first, then known to the task, the model and the caller.

One slow build holds up nobody: a candidate is taken when its measurement is there. A measurer
that answers the same in the same order gives the same run, where no processes search.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from felix import errors, events
from felix.database import records, session
from felix.runner import protocol
from felix.search import interface
from felix.tuning import checkpoint, pacing, results
from felix.tuning import options as options_module
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    from felix.templates.generated import Program

#: A bound on the wait for the unscheduled program after the last candidate, in seconds.
BASELINE_WAIT_S = 20.0

_Future = concurrent.futures.Future[protocol.Measurement]


@dataclasses.dataclass(slots=True, eq=False)
class InFlight:
    """A trial that is asked for, and the future of its measurement."""

    trial: records.Trial
    task_run: TaskRun
    future: _Future
    #: whether it is measured until the run ends: without it nothing would be known of its task
    is_first: bool = False
    #: when its measurement was there, in the run's elapsed seconds; None until then
    completed_s: float | None = None
    is_recorded: bool = False


class PendingTrials:
    """The candidates of a run that are submitted and not recorded yet, oldest first.

    Args:
        clock, compute_guard, breakdown: of the run.
        limit: when candidates that have not begun are cancelled: no further round begins then,
            or, for the first ones of tasks, the run ends.
    """

    def __init__(
        self,
        clock: pacing.Clock,
        compute_guard: pacing.ComputeGuard,
        breakdown: pacing.Breakdown,
        limit: pacing.TimeLimit,
    ) -> None:
        self._clock = clock
        self._compute_guard = compute_guard
        self._breakdown = breakdown
        self._limit = limit
        #: oldest first
        self._trials: dict[InFlight, None] = {}
        #: those that are measured or cancelled, in the order of that
        self._done: deque[InFlight] = deque()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._trials)

    def n_of(self, task_run: TaskRun) -> int:
        """How many of them are of a task."""
        return sum(trial.task_run is task_run for trial in self._trials)

    def submit(
        self,
        task_run: TaskRun,
        candidate: interface.Candidate,
        program: Program,
        is_first: bool = False,
    ) -> None:
        """Send a candidate of a task's current round to be measured."""
        future = task_run.measurer.submit(program)
        trial = InFlight(task_run.trial(candidate), task_run, future, is_first)
        self._trials[trial] = None

        def note(_: _Future) -> None:
            trial.completed_s = self._clock.elapsed_s
            with self._changed:
                if trial in self._trials:  # nobody has let go of it
                    self._done.append(trial)
                    self._changed.notify()

        future.add_done_callback(note)

    def complete_one(self, record: Callable[[InFlight], None]) -> None:
        """Wait for a candidate, record it unless it was cancelled, and let go of it."""
        trial = self._wait()
        if not trial.future.cancelled():
            record(trial)
        del self._trials[trial]

    def abandon(self, record: Callable[[InFlight], None]) -> None:
        """Record what is measured by now; let go of the rest."""
        for trial in self._trials:
            if not trial.future.cancel() and trial.future.done() and not trial.is_recorded:
                record(trial)
        with self._changed:
            self._trials.clear()
            self._done.clear()

    def take_measured(self, record: Callable[[InFlight], None]) -> None:
        """Record what is measured by now, without waiting."""
        while self._done:
            self.complete_one(record)

    def _wait(self) -> InFlight:
        """The first candidate that was measured, or cancelled because time is up."""
        start = time.perf_counter()
        while not self._done:
            timeout_s = self._timeout_s()
            with self._changed:
                self._changed.wait_for(lambda: bool(self._done), timeout_s)
            self._compute_guard.check()
        trial = self._done.popleft()
        waited_s = time.perf_counter() - start
        run_s = 0.0 if trial.future.cancelled() else trial.future.result().run_s
        running_s = min(waited_s, run_s)  # a measurement ends with its run
        self._breakdown.add("measure", running_s)
        self._breakdown.add("build_wait", waited_s - running_s)
        return trial

    def _timeout_s(self) -> float | None:
        """How long to wait; when time is up, candidates that have not begun are cancelled."""
        left_s = self.until_cancelling_s()
        if self._compute_guard.can_stop:
            left_s = pacing.POLL_S if left_s is None else min(left_s, pacing.POLL_S)
        return left_s

    def until_cancelling_s(self) -> float | None:
        """Seconds until candidates are to be cancelled, after those that are late; None: never."""
        if self._limit.seconds is None:
            return None
        for until_s, trials in (
            (self._limit.asking_s, [each for each in self._trials if not each.is_first]),
            (self._limit.end_s, list(self._trials)),
        ):
            left_s = until_s - self._clock.elapsed_s
            if left_s > 0.0:
                return left_s
            if any([trial.future.cancel() for trial in trials]):
                return 0.0
        return None


class Baselines:
    """Times the unscheduled program of each task, among its first candidates."""

    def __init__(self, on_event: options_module.OnEvent) -> None:
        self._on_event = on_event
        self._futures: dict[TaskRun, _Future] = {}

    def submit(self, task_run: TaskRun) -> None:
        """Send the task's unscheduled program to be measured."""
        try:
            future = task_run.measurer.submit(results.unscheduled(task_run.task).mod)
        except errors.UnsupportedSchedule as error:
            future = concurrent.futures.Future()
            failed = protocol.Measurement(error=protocol.ErrorClass.BUILD, message=str(error))
            future.set_result(failed)
        self._futures[task_run] = future

    def take(self) -> None:
        """Give the tasks their measurements that are there."""
        for task_run, future in list(self._futures.items()):
            if not future.done() or future.cancelled():
                continue
            del self._futures[task_run]
            measurement = future.result()
            task_run.baseline = measurement
            self._on_event(
                events.Baseline(
                    task=task_run.task.name,
                    task_index=task_run.index,
                    latency_us=measurement.latency_us,
                    message=measurement.message,
                    program=results.baseline_name(task_run.task),
                )
            )

    def wait(
        self, breakdown: pacing.Breakdown, compute_guard: pacing.ComputeGuard, left_s: float
    ) -> None:
        """Wait for those that are still to come, a while for each, and then give them up.

        Args:
            breakdown, compute_guard: of the run.
            left_s: how long there is for all.

        Raises:
            Stopped, TimeUp: the run is asked to stop, or its time is up.
        """
        end = time.monotonic() + left_s
        for task_run, future in list(self._futures.items()):
            with breakdown.of("measure"):
                compute_guard.wait_for(future, min(BASELINE_WAIT_S, end - time.monotonic()))
            if not future.done():
                del self._futures[task_run]


class Recorder:
    """Records what a run measures.

    Args:
        run: its parts.
        journal: where records are stored; None: nowhere.
    """

    def __init__(self, run: checkpoint.Parts, journal: session.Journal | None) -> None:
        self._run, self._journal = run, journal

    @property
    def n_trials(self) -> int:
        """Candidates measured."""
        return sum(len(task_run.records) for task_run in self._run.task_runs)

    def trial(self, asked: InFlight) -> None:
        """Record a trial that is measured."""
        task_run, measurement = asked.task_run, asked.future.result()
        trial = self._stored(asked.trial, measurement, asked.completed_s)
        asked.is_recorded = True  # whatever happens now, it is not recorded again
        is_best = task_run.add(trial)
        self._run.learner.remember(
            task_run.search, task_run.index, task_run.candidate(trial), measurement.latency_us
        )
        self._run.request.on_event(
            events.Trial(
                task=task_run.task.name,
                task_index=task_run.index,
                trial=self.n_trials,
                round=trial.round,
                latency_us=measurement.latency_us,
                error=None if measurement.error is None else str(measurement.error),
                message=measurement.message,
                best_us=task_run.best_us,
                is_best=is_best,
                elapsed_s=trial.elapsed_s,
            )
        )

    def repeat(
        self, task_run: TaskRun, trial: records.Trial, measurement: protocol.Measurement
    ) -> None:
        """Record that a candidate was measured again: nothing learns from it."""
        task_run.add(self._stored(dataclasses.replace(trial, repeat=True), measurement))

    def _stored(
        self,
        asked: records.Trial,
        measurement: protocol.Measurement,
        elapsed_s: float | None = None,
    ) -> records.Trial:
        """The trial with its measurement, which came then or just now; it is in the journal."""
        trial = dataclasses.replace(
            asked,
            measurement=measurement,
            elapsed_s=elapsed_s or self._run.clock.elapsed_s,
            timestamp=time.time(),
        )
        if self._journal is not None:
            self._journal.append(trial)
        self._run.breakdown.add("build_work", measurement.build_s)
        self._run.breakdown.add("run_work", measurement.run_s)
        return trial
