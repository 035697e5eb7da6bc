"""One tuning run: its parts, opened and closed together, and the steps of a round.

`felix.tuning.loop` puts the steps in order. Each part owns its state: the tasks (`task_run`), the
allocator, the cost model (`online_model`), what is being measured and what was (`pending`), the
clock and the time spent (`pacing`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from felix import errors, events, target
from felix.autodiff import torch_threads
from felix.database import session
from felix.search import allocate, interface
from felix.space import ahead
from felix.tuning import checkpoint, opener, pacing, pending, remeasure, results, rounds
from felix.tuning import options as options_module
from felix.tuning import task_run as task_run_module
from felix.tuning.task_run import TaskRun

#: A smaller relative gain is no improvement to `TuneOptions.patience_rounds`.
MIN_IMPROVEMENT = 0.01


class Run(checkpoint.Parts):
    """A run; `close` ends the measuring processes and the session.

    Raises:
        FelixError: the run cannot start: output folder, session, model, device or options.
    """

    def __init__(self, request: options_module.Request) -> None:
        self.request, self.options = request, request.options
        self.clock, self.breakdown = pacing.Clock(), pacing.Breakdown()
        self.clock.begin(request.begun_s)
        self.limit = pacing.TimeLimit(request.budget.seconds)
        self.rounds = rounds.Rounds()
        with contextlib.ExitStack() as stack:
            self._journal = self._open_journal(request, stack)
            self._open_parts(request, stack)
            if self._journal is not None:
                checkpoint.restore(self, self._journal, self.opener.open)
            self._cleanup = stack.pop_all()

    def _open_journal(
        self, request: options_module.Request, stack: contextlib.ExitStack
    ) -> session.Journal | None:
        """That of the caller, or the session in the output folder; None without either."""
        tasks, budget, out = request.tasks, request.budget, request.out
        identity = session.identity(tasks, budget.strategy, budget.seed)
        journal: session.Journal
        if self.options.journal is not None:
            journal = self.options.journal(tasks, identity)
        elif out is not None:
            journal = session.Session(out / session.FOLDER, tasks, identity, request.resume)
        elif request.resume:
            raise errors.TuningError("resuming needs the output folder of the earlier run")
        else:
            return None
        stack.callback(journal.close)
        return journal

    def _open_parts(self, request: options_module.Request, stack: contextlib.ExitStack) -> None:
        options, tasks = self.options, request.tasks
        pool = self._pool = options.open_pool(tasks[0])
        stack.callback(pool.close)
        # Its tensors are small; more threads than idle cores are slow.
        stack.enter_context(torch_threads.limit(1))
        self.compute_guard = pacing.ComputeGuard(
            pool.timing_lock, self.breakdown, options.should_stop
        )
        self.task_runs = [
            TaskRun(index, task, pool.for_task(task)) for index, task in enumerate(tasks)
        ]
        from felix.tuning import online_model  # loads torch

        self.learner = online_model.Learner(
            request.model,
            tasks[0].target,
            request.budget.seed,
            self.compute_guard.yield_to_timing,
            options.learning,
            options.learn,
        )
        hardware = target.hardware(tasks[0].target)
        self.allocator = allocate.Allocator(
            [task.weight for task in tasks],
            [allocate.task_floor_us(task, hardware) for task in tasks],
            untuned_us=[allocate.untuned_us(task, hardware) for task in tasks],
            rivals_us=[options.rivals_us.get(task.key, math.inf) for task in tasks],
        )
        for index, task in enumerate(tasks):
            if task.key in options.settled:
                self.allocator.settle(index)
        self._pending = pending.PendingTrials(
            self.clock, self.compute_guard, self.breakdown, self.limit
        )
        self._baselines = pending.Baselines(request.on_event)
        self.opener = opener.Opener(self, self._baselines)
        self._recorder = pending.Recorder(self, self._journal)
        fresh = [tasks[index] for index in self.allocator.order if self.allocator.is_open(index)]
        made_ahead = ahead.Ahead(fresh, ahead.n_processes(fresh))
        stack.callback(made_ahead.close)
        self.breakdown.add("start", self.clock.elapsed_s)

    def close(self) -> None:
        """End all processes and close the session."""
        self._cleanup.close()

    # ------------------------------------------------------------ steps of a round

    def stop_reason(self) -> str | None:
        """Why no further round begins; None to go on.

        Raises:
            Stopped, TimeUp: the run is asked to stop here.
        """
        self.compute_guard.check()
        if self.options.should_pause is not None and self.options.should_pause():
            return "interrupted"
        if self.is_late:
            return "seconds"
        trials = self.request.budget.trials
        reason = "trials" if trials is not None and self._n_begun >= trials else None
        patience = self.options.patience_rounds
        if reason is None and patience is not None:
            if self.allocator.has_converged(patience, MIN_IMPROVEMENT):
                return "converged"
        return reason

    @property
    def _n_begun(self) -> int:
        """Trials that are measured, being measured or reserved by a search."""
        return self._recorder.n_trials + len(self._pending) + self.rounds.n_reserved

    @property
    def is_late(self) -> bool:
        """Whether no further round begins, for time is nearly up."""
        return self.clock.elapsed_s >= self.limit.asking_s

    def warn(self, message: str) -> None:
        """Tell the caller something that changes no result."""
        self.request.on_event(events.Warned(message=message))

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """What is computed in the block ends when no further round begins; no error then."""
        self._end_at(self.limit.asking_s)
        try:
            yield
        except pacing.TimeUp:
            pass
        finally:
            self._end_at(self.limit.end_s)

    def _end_at(self, elapsed_s: float) -> None:
        if self.limit.seconds is not None:
            self.compute_guard.end_when(lambda: self.clock.elapsed_s >= elapsed_s)

    def choose_task(self, waiting: Collection[int]) -> TaskRun | None:
        """The task of the next round, none that has one or is to wait; None if no other can
        improve."""
        self._take_late()
        index = self.allocator.next({*self.rounds.busy, *waiting})
        return None if index is None else self.task_runs[index]

    def _take_late(self) -> None:
        """Tell the allocator of first results that came after the end of their round."""
        for task_run in self.task_runs:
            latency_us = task_run.recent_us
            if latency_us is not None and self.allocator.record_late(task_run.index, latency_us):
                task_run.take_recent_us()

    def search(self, task_run: TaskRun, n_taken: int = 0) -> list[interface.Candidate]:
        """Choose the candidates of a round that has `n_taken` already."""
        if task_run.n_rounds and task_run.unopened:
            self.opener.open_rest(task_run)
        with self.compute_guard.computing("search"):
            task_run.search.model = self.learner.models_for(task_run.index)
            n = self.round_size(task_run, n_taken=n_taken)
            first = task_run.take_first(n)
            return [*first, *task_run.search.ask(n - len(first))]

    def round_size(self, task_run: TaskRun, n_at_a_time: int = 1, n_taken: int = 0) -> int:
        """Further candidates of a task's next round, which has `n_taken`; so many rounds are
        searched at a time."""
        options, trials = self.options, self.request.budget.trials
        size = options.round_size
        if not task_run.n_rounds:
            size = min(size, options.first_round_size)
            is_limited = self.limit.seconds is not None and len(self.task_runs) > 1
            left_s = max(0.0, self.limit.asking_s - self.clock.elapsed_s)
            n_fresh = max(1, round(self.allocator.n_fresh / n_at_a_time))
            size = rounds.first_size(size, left_s if is_limited else None, n_fresh)
        if trials is not None:
            if not task_run.records:  # every task gets its warm-up, however many there are
                size = rounds.first_size_of_trials(size, trials, len(self.task_runs))
            left = self._n_spare(trials) if task_run.n_rounds else trials - self._n_begun
            size = min(size, left - n_taken)
        return max(0, size)

    @property
    def has_spare_trials(self) -> bool:
        """Whether more trials are left than waiting tasks' first rounds will take."""
        trials = self.request.budget.trials
        return trials is None or self._n_spare(trials) > 0

    def _n_spare(self, trials: int) -> int:
        """Trials that nothing has yet, without those kept for first rounds of other tasks."""
        whole, n_tasks = self.options.first_round_size, len(self.task_runs)
        first = rounds.first_size_of_trials(whole, trials, n_tasks)
        return trials - self._n_begun - first * len(self.allocator.fresh(self.rounds.busy))

    def submit(
        self,
        task_run: TaskRun,
        candidates: Sequence[interface.Candidate],
        made_elsewhere: Mapping[interface.Key, task_run_module.Applied],
    ) -> int:
        """Make the programs that no process made, and send all to be measured; how many were."""
        made = task_run.programs(candidates, self.compute_guard, made_elsewhere)
        predicted = [s.predicted_us for s, _ in made if s.predicted_us is not None]
        self.request.on_event(
            events.RoundStarted(
                task=task_run.task.name,
                task_index=task_run.index,
                round=task_run.n_rounds,
                n_candidates=len(made),
                n_invalid=len(candidates) - len(made),
                predicted_us=min(predicted, default=None),
                elapsed_s=self.clock.elapsed_s,
                steps=tuple(task_run.search.descent_steps),
            )
        )
        several = len(self.task_runs) > 1
        for number, (candidate, program) in enumerate(made):
            is_first = several and not number and not task_run.n_rounds
            self._pending.submit(task_run, candidate, program, is_first)
        return len(made)

    def n_in_flight(self, n_candidates: int) -> int:
        """Candidates that may still be measured when the round after one of so many begins.

        More while further tasks wait for their first round, whose search needs no result of
        another task.
        """
        lookahead = self.options.lookahead
        other_devices = self._pool.n_devices - 1
        n = round((lookahead + other_devices) * n_candidates)
        is_fresh = lookahead and self.allocator.n_fresh > 1  # this round's task is one of them
        return max(n, rounds.IN_FLIGHT) if is_fresh else n

    def n_pending(self, task_index: int | None = None) -> int:
        """Candidates that are still being measured, of all tasks or of one."""
        if task_index is None:
            return len(self._pending)
        return self._pending.n_of(self.task_runs[task_index])

    def has_room(self) -> bool:
        """Whether so few candidates are being measured that another round may be searched."""
        n = self.options.round_size * (self.options.lookahead + self._pool.n_devices)
        return len(self._pending) < max(n, rounds.IN_FLIGHT)

    def take_measured(self) -> None:
        """Record what is measured by now; when time is up, cancel what has not begun."""
        self._pending.until_cancelling_s()
        self._pending.take_measured(self._record)

    def collect(self, leave: int = 0) -> None:
        """Record the first results until those of `leave` candidates are still to come; the same
        ones on a slow machine, so that a seed gives the same run."""
        while len(self._pending) > leave:
            self._pending.complete_one(self._record)

    def end_round(self, task_run: TaskRun, n_candidates: int) -> None:
        """Tell the allocator what the round gave so far; late results count to the next one."""
        self.allocator.record(task_run.index, task_run.take_recent_us(), n_candidates)
        task_run.n_rounds += 1

    def settle(self) -> bool:
        """Wait for everything and tell the allocator; whether there was news for it."""
        self.collect()
        recent = [(task_run, task_run.take_recent_us()) for task_run in self.task_runs]
        for task_run, latency_us in recent:
            if latency_us is not None:
                self.allocator.record(task_run.index, latency_us, 1)
        return any(latency_us is not None for _, latency_us in recent)

    def learn(self) -> None:
        """Let the cost models learn what is new."""
        if not self.learner.n_unlearnt:
            return
        with self.compute_guard.computing("train"):
            outcomes = self.learner.learn()
        for outcome in outcomes:
            self.request.on_event(
                events.Trained(
                    n_records=outcome.records,
                    loss_before=outcome.before,
                    loss_after=outcome.after,
                    accepted=outcome.accepted,
                )
            )

    def save(self) -> None:
        """Write the checkpoint; it has the time until then, the breakdown also its own."""
        self.breakdown.total_s = self.clock.elapsed_s
        if self._journal is not None:
            with self.breakdown.of("save"):
                self._journal.save(*checkpoint.take(self))
        self.breakdown.total_s = self.clock.elapsed_s

    # ------------------------------------------------------------ begin and end

    def start(self) -> None:
        """Say that tuning begins; from now on it ends in time."""
        self._end_at(self.limit.end_s)
        self.request.on_event(
            events.Started(
                tasks=tuple(task_run.task.name for task_run in self.task_runs),
                strategy=self.request.budget.strategy,
                trials=self.request.budget.trials,
                seconds=self.request.budget.seconds,
                resumed_trials=self._recorder.n_trials,
                model=self.learner.message,
            )
        )

    def remeasure(self) -> None:
        """Measure the fastest candidates again, longer."""
        self.request.on_event(events.Remeasuring())
        self._baselines.wait(self.breakdown, self.compute_guard, 0.5 * self._left_s)
        self._baselines.take()
        remeasure.Remeasuring(self, self._recorder).all()

    @property
    def _left_s(self) -> float:
        return max(0.0, self.limit.end_s - self.clock.elapsed_s)

    def finish(self, reason: str) -> results.NetworkResult:
        """Take the last results in, write the last checkpoint, say that tuning ended."""
        self._pending.abandon(self._record)
        self._baselines.take()
        self.save()
        result = results.network(
            [task_run.result(reason, self.breakdown) for task_run in self.task_runs],
            reason,
            self.breakdown,
        )
        for task_run, each in zip(self.task_runs, result.results, strict=True):
            self._report_choice(task_run.index, each)
        self.request.on_event(
            events.Finished(
                reason=reason,
                trials=self._recorder.n_trials,
                latency_us=result.latency_us,
                elapsed_s=self.clock.elapsed_s,
            )
        )
        return result

    def _report_choice(self, index: int, result: results.TuneResult) -> None:
        """Say which of the two ships, where the unscheduled program was measured."""
        tuned = result.tuned_or_none
        if result.best_or_none is None or result.unscheduled_us is None:
            return
        self.request.on_event(
            events.Chosen(
                task=result.task.name,
                task_index=index,
                tuned_us=None if tuned is None else tuned.latency_us,
                unscheduled_us=result.unscheduled_us,
                ships_unscheduled=result.ships_unscheduled,
                program=results.baseline_name(result.task),
            )
        )

    def _record(self, trial: pending.InFlight) -> None:
        self._baselines.take()
        self._recorder.trial(trial)
