"""Imported MetaSchedule databases: jobs that ended when they were made, with schedules.

Their latencies were measured somewhere else, so they answer nothing: jobs of the same programs
measure their fastest schedules first (`reuse`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlalchemy import orm

from server import states
from server.database import columns, models
from server.store import events, jobs, rows, trials


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """How a trace reads (`felix.metaschedule.trace_text`), and the latency it came with."""

    signature: str
    decisions: list[str]
    latency_us: float


def create(
    tx: orm.Session,
    new: jobs.NewJob,
    schedules: Sequence[Sequence[NewSchedule]],
    key_id: int,
    idempotency: jobs.IdempotencyKey | None,
    quota: jobs.Quota,
    n_bytes: int = 0,
) -> jobs.RequestedJob:
    """A job of kind `database` with the schedules of each task, the fastest first.

    `n_bytes` is the size of the uploaded file.

    Raises:
        Conflict, QuotaExceeded
    """
    made = jobs.create(tx, new, key_id, idempotency, quota, n_bytes)
    if not made.is_new:
        return made
    for task, of_task in enumerate(schedules):
        for number, schedule in enumerate(of_task, start=1):
            values = dataclasses.asdict(schedule)
            tx.add(models.ImportedSchedule(job_id=made.job.id, task=task, number=number, **values))
        best_us = of_task[0].latency_us
        tx.get_one(models.Task, (made.job.id, task)).best_us = best_us
    tx.flush()
    return jobs.RequestedJob(_end(tx, made.job.id), True)


def _end(tx: orm.Session, job_id: int) -> rows.Job:
    job = events.lock_job(tx, job_id)
    best_us = trials.weighted(tx, job_id, models.Task.best_us)
    events.change_state(tx, job, states.State.STOPPING, started_at=columns.db_now())
    reason = {"reason": "imported"}
    events.change_state(
        tx, job, states.State.SUCCEEDED, reason, reason="imported", best_us=best_us
    )
    return jobs.get(tx, job_id)
