"""Measurements become records: stored first, then known to the task, the model and the caller."""

from __future__ import annotations

import dataclasses
import time

from felix import events, records
from felix.measure import protocol
from felix.tuning import checkpoint, session
from felix.tuning import options as options_module
from felix.tuning.task_run import TaskRun
from felix.tuning.trials import pending


class Recorder:
    """Records what a run measures.

    Args:
        run: its parts.
        journal: where records are stored; None: nowhere.
        on_event: called with each trial.
    """

    def __init__(
        self,
        run: checkpoint.Parts,
        journal: session.Journal | None,
        on_event: options_module.OnEvent,
    ) -> None:
        self._run, self._journal, self._on_event = run, journal, on_event

    @property
    def n_trials(self) -> int:
        """Candidates measured."""
        return sum(len(task_run.records) for task_run in self._run.task_runs)

    def trial(self, trial: pending.PendingTrial) -> None:
        """Record a candidate that is measured."""
        task_run, suggestion, measurement = trial.task_run, trial.suggestion, trial.future.result()
        sketch = task_run.sketches[suggestion.sketch_index]
        elapsed_s = trial.completed_s
        if elapsed_s is None:
            elapsed_s = self._run.clock.elapsed_s
        record = records.Record(
            task_key=task_run.task.key,
            task_name=task_run.task.name,
            sketch_index=sketch.index,
            sketch_key=sketch.key,
            decisions=suggestion.decisions,
            measurement=measurement,
            predicted_us=suggestion.predicted_us,
            round=trial.round,
            elapsed_s=elapsed_s,
            timestamp=time.time(),
            versions=records.versions(),
            variant=str(sketch.variant),
        )
        self._store(record)
        trial.is_recorded = True  # whatever happens now, it is not recorded again
        is_best = task_run.add(record)
        self._run.learner.remember(task_run.search, task_run.index, suggestion, measurement)
        self._add_work(measurement)
        self._on_event(
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
                elapsed_s=record.elapsed_s,
            )
        )

    def repeat(
        self, task_run: TaskRun, record: records.Record, measurement: protocol.Measurement
    ) -> None:
        """Record that a candidate was measured again: no trial, and nothing learns from it."""
        repeat = dataclasses.replace(
            record,
            measurement=measurement,
            elapsed_s=self._run.clock.elapsed_s,
            timestamp=time.time(),
            repeat=True,
        )
        self._store(repeat)
        task_run.add(repeat)
        self._add_work(measurement)

    def _store(self, record: records.Record) -> None:
        if self._journal is not None:
            self._journal.append(record)

    def _add_work(self, measurement: protocol.Measurement) -> None:
        self._run.breakdown.add("build_work", measurement.build_s)
        self._run.breakdown.add("run_work", measurement.run_s)
