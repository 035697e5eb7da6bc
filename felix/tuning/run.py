"""One tuning run: its parts, opened and closed together, and the steps of a round.

`felix.tuning.tune` puts the steps in order. Each part owns its state: the tasks (`task_run`), the
allocator, the cost model (`online_model`), what is being measured (`pending`), what is measured
(`recorder`), the clock and the time spent (`pacing`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix import errors, events, target
from felix.autodiff import torch_threads
from felix.features.kind import FeatureKind
from felix.measure import limits
from felix.search import allocate, interface, strategies
from felix.sketch import variables
from felix.tuning import (
    checkpoint,
    pacing,
    pending,
    recorder,
    remeasure,
    results,
    session,
)
from felix.tuning import options as options_module
from felix.tuning.opening import ahead, first_rounds
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    from felix.sketch.sketch import Sketch
    from felix.tuning import online_model


class Run:
    """A run; `close` ends the measuring processes and the session.

    Raises:
        FelixError: the run cannot start: output folder, session, model, device or options.
    """

    def __init__(self, request: options_module.Request) -> None:
        self._budget, self._options = request.budget, request.options
        self._on_event = request.on_event
        self._clock, self._breakdown = pacing.Clock(), pacing.Breakdown()
        with contextlib.ExitStack() as stack:
            self._journal = self._open_journal(request, stack)
            self._open_parts(request, stack)
            if self._journal is not None:
                checkpoint.restore(self._parts, self._journal, self._open_task)
            self._cleanup = stack.pop_all()

    def _open_journal(
        self, request: options_module.Request, stack: contextlib.ExitStack
    ) -> session.Journal | None:
        identity = session.identity(request.tasks, self._budget.strategy, self._budget.seed)
        journal = session.open_journal(
            request.tasks, identity, request.out, request.resume, self._options.journal
        )
        if journal is not None:
            stack.callback(journal.close)
        return journal

    def _open_parts(self, request: options_module.Request, stack: contextlib.ExitStack) -> None:
        options, tasks = self._options, request.tasks
        pool = self._pool = options.open_pool(tasks[0])
        stack.callback(pool.close)
        stack.enter_context(torch_threads.limit(options.torch_threads))
        self._compute_guard = pacing.ComputeGuard(
            pool.timing_lock, self._breakdown, options.should_stop
        )
        self._task_runs = [
            TaskRun(index, task, pool.for_task(task)) for index, task in enumerate(tasks)
        ]
        self._learner = self._load_model(request)
        hardware = target.hardware(tasks[0].target)
        self._allocator = allocate.Allocator(
            [task.weight for task in tasks],
            [allocate.task_floor_us(task, hardware) for task in tasks],
            options.allocation,
            [allocate.untuned_us(task, hardware) for task in tasks],
        )
        for index, task in enumerate(tasks):
            if task.key in options.settled:
                self._allocator.settle(index)
        self._pending = pending.PendingTrials(
            self._clock, self._compute_guard, self._breakdown, self._budget.seconds
        )
        self._baselines = pending.Baselines(self._on_event)
        self._recorder = recorder.Recorder(
            self._task_runs, self._journal, self._learner, self._clock, self._breakdown,
            self._on_event,
        )  # fmt: skip
        self._parts = checkpoint.Parts(
            task_runs=self._task_runs,
            allocator=self._allocator,
            learner=self._learner,
            clock=self._clock,
            breakdown=self._breakdown,
        )
        fresh = [tasks[index] for index in self._allocator.order if self._allocator.is_open(index)]
        made_ahead = ahead.Ahead(fresh, ahead.n_processes(fresh))
        stack.callback(made_ahead.close)
        self._breakdown.add("start", self._clock.elapsed_s)

    def _load_model(self, request: options_module.Request) -> online_model.Learner | None:
        if self._budget.strategy in strategies.WITHOUT_MODEL:
            return None
        from felix.tuning import online_model

        return online_model.Learner(
            request.model, request.tasks[0].target, self._budget.seed,
            self._compute_guard.yield_to_timing, self._options.learning, self._options.learn,
        )  # fmt: skip

    def close(self) -> None:
        """End all processes and close the session."""
        self._cleanup.close()

    # ------------------------------------------------------------ steps of a round

    def stop_reason(self) -> str | None:
        """Why no further round begins; None to go on."""
        if self._options.should_pause is not None and self._options.should_pause():
            return "interrupted"
        n_begun = self._recorder.n_trials + len(self._pending)
        budget, elapsed_s = self._budget, self._clock.elapsed_s
        reason = budget.spent(n_begun, elapsed_s)
        if reason == "seconds" and first_rounds.may_overrun(
            budget.seconds, elapsed_s, self._allocator.n_fresh, len(self._task_runs)
        ):
            return None
        patience, min_improvement = self._options.patience_rounds, self._options.min_improvement
        if reason is None and patience is not None:
            if self._allocator.has_converged(patience, min_improvement):
                return "converged"
        return reason

    def next_task(self) -> TaskRun | None:
        """The task of the next round, opened; None if no task can improve.

        Raises:
            FelixError: the only task cannot be tuned.
        """
        self._take_late()
        while (index := self._allocator.next()) is not None:
            task_run = self._task_runs[index]
            if task_run.is_open or self._has_opened(task_run):
                return task_run
        return None

    def _take_late(self) -> None:
        """Tell the allocator of first results that came after the end of their round."""
        for task_run in self._task_runs:
            latency_us = task_run.recent_us
            if latency_us is not None and self._allocator.record_late(task_run.index, latency_us):
                task_run.take_recent_us()

    def _has_opened(self, task_run: TaskRun) -> bool:
        """Open a task; one of several that cannot be tuned is skipped, and False.

        Raises:
            FelixError: the only task cannot be tuned.
        """
        try:
            self._open_task(task_run)
        except (errors.TuningError, errors.WorkloadError) as error:
            if len(self._task_runs) == 1:
                raise
            task_run.skipped = str(error)
            self._allocator.settle(task_run.index)
            self._on_event(
                events.Skipped(
                    task=task_run.task.name, task_index=task_run.index, reason=str(error)
                )
            )
        return task_run.is_open

    def search(self, task_run: TaskRun) -> list[interface.Suggestion]:
        """Choose the candidates of a round."""
        from felix.search.strategies import base

        if task_run.n_rounds and task_run.unopened:
            self._open_rest(task_run)
        with self._compute_guard.computing("search"):
            if self._learner is not None and isinstance(task_run.search, base.ModelSearch):
                task_run.search.model = self._learner.models_for(task_run.index)
            n = self._round_size(task_run)
            first = task_run.take_first(n)
            return [*first, *task_run.search.suggest(n - len(first))]

    def _round_size(self, task_run: TaskRun) -> int:
        options, trials = self._options, self._budget.trials
        size = options.round_size
        if not task_run.n_rounds:
            size = min(size, options.first_round_size)
            seconds = self._budget.seconds if len(self._task_runs) > 1 else None
            left_s = None if seconds is None else max(0.0, seconds - self._clock.elapsed_s)
            size = first_rounds.size(size, left_s, max(1, self._allocator.n_fresh))
        if trials is not None:
            if not task_run.records:  # every task gets its warm-up, however many there are
                size = min(size, max(1, trials // len(self._task_runs)))
            size = min(size, trials - self._recorder.n_trials - len(self._pending))
        return size

    def submit(self, task_run: TaskRun, suggestions: Sequence[interface.Suggestion]) -> int:
        """Make the programs and send them to be measured; how many were sent."""
        made = task_run.programs(suggestions, self._compute_guard)
        predicted = [s.predicted_us for s, _ in made if s.predicted_us is not None]
        self._on_event(
            events.RoundStarted(
                task=task_run.task.name,
                task_index=task_run.index,
                round=task_run.n_rounds,
                n_candidates=len(made),
                n_invalid=len(suggestions) - len(made),
                predicted_us=min(predicted, default=None),
                elapsed_s=self._clock.elapsed_s,
                steps=tuple(task_run.search.descent_steps),
            )
        )
        several = len(self._task_runs) > 1
        for number, (suggestion, program) in enumerate(made):
            is_first = several and not number and not task_run.n_rounds
            self._pending.submit(task_run, suggestion, program, is_first)
        return len(made)

    def n_in_flight(self, n_candidates: int) -> int:
        """Candidates that may still be measured when the round after one of so many begins.

        More while further tasks wait for their first round, whose search needs no result of
        another task.
        """
        lookahead = self._options.lookahead
        other_devices = self._pool.n_devices - 1
        n = round((lookahead + other_devices) * n_candidates)
        is_fresh = lookahead and self._allocator.n_fresh > 1  # this round's task is one of them
        return max(n, first_rounds.IN_FLIGHT) if is_fresh else n

    def collect(self, leave: int = 0) -> None:
        """Wait until at most `leave` candidates are still being measured."""
        while len(self._pending) > leave:
            self._pending.complete_one(self._record)
        self._pending.take_measured(self._record)

    def end_round(self, task_run: TaskRun, n_candidates: int) -> None:
        """Tell the allocator what the round gave so far; late results count to the next one."""
        self._allocator.record(task_run.index, task_run.take_recent_us(), n_candidates)
        task_run.end_round()

    def settle(self) -> bool:
        """Wait for everything and tell the allocator; whether there was news for it."""
        self.collect()
        recent = [(task_run, task_run.take_recent_us()) for task_run in self._task_runs]
        for task_run, latency_us in recent:
            if latency_us is not None:
                self._allocator.record(task_run.index, latency_us, 1)
        return any(latency_us is not None for _, latency_us in recent)

    def learn(self) -> None:
        """Let the cost models learn what is new."""
        if self._learner is None or not self._learner.n_unlearnt:
            return
        with self._compute_guard.computing("train"):
            outcomes = self._learner.learn()
        for outcome in outcomes:
            self._on_event(
                events.Trained(
                    n_records=outcome.records,
                    loss_before=outcome.before,
                    loss_after=outcome.after,
                    accepted=outcome.accepted,
                )
            )

    def save(self) -> None:
        """Write the checkpoint; it has the time until then, the breakdown also its own."""
        self._breakdown.total_s = self._clock.elapsed_s
        if self._journal is not None:
            with self._breakdown.of("save"):
                self._journal.save(*checkpoint.take(self._parts))
        self._breakdown.total_s = self._clock.elapsed_s

    # ------------------------------------------------------------ begin and end

    def start(self) -> None:
        """Say that tuning begins."""
        self._on_event(
            events.Started(
                tasks=tuple(task_run.task.name for task_run in self._task_runs),
                strategy=self._budget.strategy,
                trials=self._budget.trials,
                seconds=self._budget.seconds,
                resumed_trials=self._recorder.n_trials,
                model="none" if self._learner is None else self._learner.message,
            )
        )

    def remeasure(self) -> None:
        """Measure the fastest candidates again, longer."""
        self._on_event(events.Remeasuring())
        self._baselines.wait(self._breakdown, self._compute_guard)
        self._baselines.take()
        remeasure.run(
            self._task_runs, self._options, self._compute_guard, self._breakdown, self._recorder
        )

    def finish(self, reason: str) -> results.NetworkResult:
        """Take the last results in, write the last checkpoint, say that tuning ended."""
        if reason == "interrupted":
            self._pending.abandon(self._record)
        else:
            self.collect()
        self._baselines.take()
        self.save()
        result = results.network(
            [task_run.result(reason, self._breakdown) for task_run in self._task_runs],
            reason, self._breakdown,
        )  # fmt: skip
        for task_run, each in zip(self._task_runs, result.results, strict=True):
            self._report_choice(task_run.index, each)
        self._on_event(
            events.Finished(
                reason=reason,
                trials=self._recorder.n_trials,
                latency_us=result.latency_us,
                elapsed_s=self._clock.elapsed_s,
            )
        )
        return result

    def _report_choice(self, index: int, result: results.TuneResult) -> None:
        """Say which of the two ships, where the unscheduled program was measured."""
        if result.tuned_or_none is None or result.unscheduled_us is None:
            return
        self._on_event(
            events.Chosen(
                task=result.task.name,
                task_index=index,
                tuned_us=result.tuned_or_none.latency_us,
                unscheduled_us=result.unscheduled_us,
                ships_unscheduled=result.ships_unscheduled,
                program=results.baseline_name(result.task),
            )
        )

    def has_best(self) -> bool:
        """Whether any task has a schedule that runs."""
        return any(task_run.best is not None for task_run in self._task_runs)

    def _record(self, trial: pending.PendingTrial) -> None:
        self._baselines.take()
        self._recorder.trial(trial)

    def _open_task(self, task_run: TaskRun, is_resumed: bool = False) -> None:
        """Make a task's sketches and search; time its unscheduled program beside."""
        self._on_event(events.Opening(task=task_run.task.name, task_index=task_run.index))
        limits.check(task_run.task, limits.of_this_machine(task_run.task))
        if self._options.baseline and not is_resumed:
            self._baselines.submit(task_run)
        before_s = self._breakdown.extract_s
        with self._compute_guard.computing("extract"):
            model = None if self._learner is None else self._learner.models_for(task_run.index)
            left_out = task_run.open(
                self._budget.strategy, model, self._options.search, self._budget.seed,
                self._compute_guard.yield_to_timing,
                templates_first=len(self._task_runs) > 1 and not is_resumed,
            )  # fmt: skip
        every = [*task_run.sketches, *task_run.unopened]
        if self._options.first_schedules is not None:
            self._set_first(task_run, self._options.first_schedules(task_run.task, every))
        for message in left_out:
            self._on_event(events.Warned(message=message))
        self._on_event(
            events.Opened(
                task=task_run.task.name,
                task_index=task_run.index,
                n_sketches=len(every),
                extract_s=self._breakdown.extract_s - before_s,
                decisions={s.index: _labels(s) for s in every},
            )
        )

    def _set_first(
        self, task_run: TaskRun, schedules: Sequence[tuple[str, Sequence[int]]]
    ) -> None:
        """Let schedules be measured first, whichever sketches they are of."""
        unopened = {sketch.key for sketch in task_run.unopened}
        if any(key in unopened for key, _ in schedules):
            self._open_rest(task_run)
        task_run.set_first(schedules)

    def _open_rest(self, task_run: TaskRun) -> None:
        """Let a task's search have the sketches of traces, too."""
        with self._compute_guard.computing("extract"):
            left_out = task_run.open_rest(self._compute_guard.yield_to_timing)
        for message in left_out:
            self._on_event(events.Warned(message=message))


def _labels(sketch: Sketch) -> tuple[tuple[str, int], ...]:
    """What the decisions of a sketch are, as `events.Opened` says."""
    labels = variables.labels(sketch.variables)
    if sketch.formulas.kind is FeatureKind.TEMPLATE:
        return ((f"generated kernel {sketch.variant}", 0), *labels)
    return labels
