"""The state of one tuning run and the steps of a round; `felix.tune` puts them in order.

Candidates fly until they are measured, and land in any order: one slow build holds up nobody. A
measurer that answers the same in the same order gives the same run.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from felix import events, records
from felix.autodiff import torch_threads
from felix.measure import protocol
from felix.search import allocate, interface, strategies
from felix.tuning import checkpoint, pacing, results, setup, task_run
from felix.tuning import options as options_module

if TYPE_CHECKING:
    from felix.task import Task
    from felix.tuning import online_model

OnEvent = Callable[[events.Event], None]

#: A bound on the wait for the unscheduled program after the last candidate, in seconds.
BASELINE_WAIT_S = 20.0

#: How often a run that waits asks `TuneOptions.should_stop`, in seconds.
STOP_POLL_S = 0.2


class Run:
    """A run; `close` ends the measuring processes and the session.

    Raises:
        FelixError: the run cannot start: output folder, session, model, device or options.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        budget: options_module.Budget,
        options: options_module.TuneOptions,
        model: online_model.ModelLike,
        out: pathlib.Path | None,
        resume: bool,
        on_event: OnEvent | None,
    ) -> None:
        self.budget, self.options = budget, options
        self.emit: OnEvent = on_event or (lambda event: None)
        self.breakdown = pacing.Breakdown()
        self.started_s = time.monotonic()
        self.before_s = 0.0
        self.flights: list[task_run.Flight] = []
        self.fresh: list[tuple[task_run.Job, interface.Suggestion, protocol.Measurement]] = []
        with contextlib.ExitStack() as stack:
            self.session = setup.open_session(tasks, budget, out, resume, options.journal)
            if self.session is not None:
                stack.callback(self.session.close)
            pool = (options.pool or setup.local_pool)(tasks[0])
            stack.callback(pool.close)
            stack.enter_context(torch_threads.limit(options.torch_threads))
            self.compute_guard = pacing.ComputeGuard(
                pool.timing_lock, self.breakdown, options.should_stop
            )
            self.jobs = [task_run.Job(i, t, pool.for_task(t)) for i, t in enumerate(tasks)]
            weights, floors = [t.weight for t in tasks], [setup.floor_us(t) for t in tasks]
            self.allocator = allocate.Allocator(weights, floors, options.allocation)
            self.learner = self._learner(model, tasks[0])
            self.breakdown.add("start", time.monotonic() - self.started_s)
            checkpoint.restore(self)
            self._cleanup = stack.pop_all()

    def close(self) -> None:
        """End all processes and close the session."""
        self._cleanup.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning, resumed ones included."""
        return self.before_s + time.monotonic() - self.started_s

    @property
    def n_measured(self) -> int:
        """Candidates measured."""
        return sum(len(job.records) for job in self.jobs)

    def start(self) -> None:
        """Tell that tuning begins."""
        self.emit(
            events.Started(
                tasks=tuple(job.task.name for job in self.jobs),
                strategy=self.budget.strategy,
                trials=self.budget.trials,
                seconds=self.budget.seconds,
                resumed_trials=self.n_measured,
                model="none" if self.learner is None else self.learner.message,
            )
        )

    def stop_reason(self) -> str | None:
        """Why no further round begins; None to go on."""
        budget = self.budget
        if budget.trials is not None and self.n_measured + len(self.flights) >= budget.trials:
            return "trials"
        if budget.seconds is not None and self.elapsed_s >= budget.seconds:
            return "seconds"
        return "converged" if setup.has_converged(self.allocator, self.options) else None

    def next_job(self) -> task_run.Job | None:
        """The task of the next round, opened; None if no task can improve."""
        index = self.allocator.next()
        if index is None:
            return None
        job = self.jobs[index]
        if job.search is None:
            self.open(job)
        return job

    def search(self, job: task_run.Job) -> list[interface.Suggestion]:
        """Choose the candidates of a round."""
        budget, n = self.budget, self.options.round_size
        if not job.n_rounds:
            n = min(n, self.options.first_round_size)
        if budget.trials is not None:
            if not job.records:  # every task gets its warm-up, however many there are
                n = min(n, max(1, budget.trials // len(self.jobs)))
            n = min(n, budget.trials - self.n_measured - len(self.flights))
        with self.compute_guard.computing("search"):
            if self.learner is not None:
                job.search.model = self.learner.copy_for(job.index)
            found: list[interface.Suggestion] = job.search.suggest(n)
        return found

    def submit(self, job: task_run.Job, suggestions: Sequence[interface.Suggestion]) -> int:
        """Make the schedules and send them to be measured; how many were sent."""
        made = job.schedules(suggestions, self.compute_guard)
        predicted = [s.predicted_us for s, _ in made if s.predicted_us is not None]
        self.emit(
            events.RoundStarted(
                task=job.task.name,
                task_index=job.index,
                round=job.n_rounds,
                n_candidates=len(made),
                n_invalid=len(suggestions) - len(made),
                predicted_us=min(predicted, default=None),
                elapsed_s=self.elapsed_s,
                steps=tuple(getattr(job.search, "descent_steps", ())),
            )
        )
        for suggestion, mod in made:
            flight = task_run.Flight(job, suggestion, job.measurer.submit(mod), job.n_rounds)
            flight.future.add_done_callback(self._stamp(flight))
            self.flights.append(flight)
        return len(made)

    def collect(self, leave: int = 0) -> None:
        """Wait until at most `leave` candidates are still flying."""
        while len(self.flights) > leave:
            flight = self._landed()
            if not flight.future.cancelled():
                self._keep(flight, flight.future.result())
            self.flights.remove(flight)

    def settle(self) -> bool:
        """Wait for everything and tell the allocator; whether there was news for it."""
        self.collect()
        late = [job for job in self.jobs if job.recent_us is not None]
        for job in late:
            self.allocator.record(job.index, job.recent_us, 1)
            job.recent_us = None
        return bool(late)

    def end_round(self, job: task_run.Job, n_candidates: int) -> None:
        """Tell the allocator what the round gave so far; late results count to the next one."""
        self.allocator.record(job.index, job.recent_us, n_candidates)
        job.recent_us = None
        job.n_rounds += 1

    def learn(self) -> None:
        """Let the cost model learn what is new."""
        if self.learner is None or not self.fresh:
            return
        with self.compute_guard.computing("train"):
            outcome = self.learner.learn(
                [(job.search, job.index, s, measured) for job, s, measured in self.fresh]
            )
        self.fresh.clear()
        if outcome is not None:
            self.emit(
                events.Trained(
                    n_records=outcome.records,
                    loss_before=outcome.before,
                    loss_after=outcome.after,
                    accepted=outcome.accepted,
                )
            )

    def save(self) -> None:
        """Write the checkpoint."""
        self.breakdown.total_s = self.elapsed_s
        if self.session is not None:
            with self.breakdown.of("save"):
                self.session.save(*checkpoint.take(self))

    def abandon(self) -> None:
        """Keep what is measured by now; let go of the rest."""
        for flight in list(self.flights):
            if flight.future.cancel() or not flight.future.done() or flight.kept:
                continue
            self._keep(flight, flight.future.result())
        self.flights.clear()

    def finish(self, reason: str) -> None:
        """Take the last results in, write the last checkpoint, tell the end."""
        if reason == "interrupted":
            self.abandon()
        self.collect()
        for job in self.jobs:
            if job.pending_baseline is not None and reason != "interrupted":
                with self.breakdown.of("measure"):
                    concurrent.futures.wait([job.pending_baseline], BASELINE_WAIT_S)
        self._take_baselines()
        self.save()
        self.emit(
            events.Finished(
                reason=reason,
                trials=self.n_measured,
                latency_us=self.latency_us(),
                elapsed_s=self.elapsed_s,
            )
        )

    def keep_repeat(self, job: task_run.Job, record: records.Record) -> None:
        """Write down a measurement of the finals; nothing learns from it."""
        if self.session is not None:
            self.session.append(record)
        job.keep(record)
        self.breakdown.add("build_work", record.measurement.build_s)
        self.breakdown.add("run_work", record.measurement.run_s)

    def n_working(self) -> int:
        """Tasks with a schedule that runs."""
        return sum(job.best is not None for job in self.jobs)

    def latency_us(self) -> float | None:
        """Sum of weight x best latency; None while a task has none."""
        total = 0.0
        for job in self.jobs:
            if job.best_us is None:
                return None
            total += job.task.weight * job.best_us
        return total

    def result(self, reason: str) -> results.NetworkResult:
        """All results as they stand."""
        every = sorted((r for job in self.jobs for r in job.records), key=lambda r: r.elapsed_s)
        return results.NetworkResult(
            results=tuple(job.result(reason, self.breakdown) for job in self.jobs),
            curve=results.network_curve(every, {j.task.key: j.task.weight for j in self.jobs}),
            reason=reason,
            breakdown=self.breakdown,
        )

    def _learner(self, model: online_model.ModelLike, task: Task) -> online_model.Learner | None:
        if self.budget.strategy in strategies.WITHOUT_MODEL:
            return None
        from felix.tuning import online_model

        options = self.options
        return online_model.Learner(
            model, task.target, self.budget.seed,
            self.compute_guard.yield_to_timing, options.learning,
            options.learn,
        )  # fmt: skip

    def open(self, job: task_run.Job, is_resumed: bool = False) -> None:
        if self.options.baseline and not is_resumed:
            job.pending_baseline = job.measurer.submit(job.task.mod)
        before = self.breakdown.extract_s
        with self.compute_guard.computing("extract"):
            model = None if self.learner is None else self.learner.copy_for(job.index)
            budget = self.budget
            left_out = job.open(budget.strategy, model, self.options.search, budget.seed)
        for message in left_out:
            self.emit(events.Warned(message=message))
        self.emit(
            events.Opened(
                task=job.task.name,
                task_index=job.index,
                n_sketches=len(job.sketches),
                extract_s=self.breakdown.extract_s - before,
            )
        )

    def _landed(self) -> task_run.Flight:
        """The oldest candidate that is measured, or cancelled because time is up; waits for it."""
        start = time.perf_counter()
        while (landed := next((f for f in self.flights if f.future.done()), None)) is None:
            seconds = self.budget.seconds
            left = None if seconds is None else max(0.0, seconds - self.elapsed_s)
            futures = [flight.future for flight in self.flights]
            first = concurrent.futures.FIRST_COMPLETED
            if left == 0.0:  # what has not begun never will
                cancelled = [future.cancel() for future in futures]
                left = 0.0 if any(cancelled) else None
            if self.options.should_stop is not None:
                left = STOP_POLL_S if left is None else min(left, STOP_POLL_S)
            concurrent.futures.wait(futures, left, first)
            self.compute_guard.check()
        waited = time.perf_counter() - start
        run_s = 0.0 if landed.future.cancelled() else landed.future.result().run_s
        running = min(waited, run_s)  # a result ends with its run
        self.breakdown.add("measure", running)
        self.breakdown.add("build_wait", waited - running)
        return landed

    def _keep(self, flight: task_run.Flight, measurement: protocol.Measurement) -> None:
        """Write a measurement down, then let everything know it."""
        job, suggestion = flight.job, flight.suggestion
        sketch = job.sketches[suggestion.sketch_index]
        record = records.Record(
            task_key=job.task.key,
            task_name=job.task.name,
            sketch_index=sketch.index,
            sketch_key=sketch.key,
            decisions=suggestion.decisions,
            measurement=measurement,
            predicted_us=suggestion.predicted_us,
            round=flight.round,
            elapsed_s=self.elapsed_s if flight.done_s is None else flight.done_s,
            timestamp=time.time(),
            versions=records.versions(),
        )
        if self.session is not None:
            self.session.append(record)
        flight.kept = True
        is_best = job.keep(record)
        self.fresh.append((job, suggestion, measurement))
        self.breakdown.add("build_work", measurement.build_s)
        self.breakdown.add("run_work", measurement.run_s)
        self._take_baselines()
        self.emit(
            events.Trial(
                task=job.task.name,
                task_index=job.index,
                trial=self.n_measured,
                round=flight.round,
                latency_us=measurement.latency_us,
                error=None if measurement.error is None else str(measurement.error),
                message=measurement.message,
                best_us=job.best_us,
                is_best=is_best,
                elapsed_s=record.elapsed_s,
            )
        )

    def _take_baselines(self) -> None:
        for job in self.jobs:
            future = job.pending_baseline
            if future is None or not future.done() or future.cancelled():
                continue
            job.unscheduled, job.pending_baseline = future.result(), None
            found = job.unscheduled
            self.emit(
                events.Baseline(
                    task=job.task.name,
                    task_index=job.index,
                    latency_us=found.latency_us,
                    message=found.message,
                )
            )

    def _stamp(self, flight: task_run.Flight) -> Callable[[Any], None]:
        def stamp(_: Any) -> None:
            flight.done_s = self.elapsed_s

        return stamp
