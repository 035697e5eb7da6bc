"""Trials: written once under the fence, read in pages.

A trial's number, its event's sequence number and the check of the fence are one UPDATE, so a
tuner whose lease was taken writes nothing. A candidate is one row of its job whoever measured it
(unique over job, task and schedule): only a failure of infrastructure is overwritten by a later
try, because it says nothing about the schedule.

At the end of a run the fastest candidates are measured again, longer (`remeasure`). Of such a
candidate only that measurement counts, so the best may rise again.

`curve_us` is the sum of the tasks' best latencies by weight, where a trial lowered it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models
from server.store import events, leases, rows, statements

#: The error class that is not the candidate's fault (`felix.runner.protocol`).
INFRASTRUCTURE = "infrastructure"

#: Rows fetched at a time where all are read.
BATCH = 1000


def row(task: int, record: str) -> models.Trial:
    """The row of a trial of a task, by its number; `append` writes it.

    Args:
        task: its number in the job.
        record: the trial as the engine has it, a line of `felix.database.records`.
    """
    fields = json.loads(record)
    measured = fields["measurement"]
    decisions = ",".join(map(str, fields["decisions"]))
    schedule = f"{fields['sketch_key']}|{decisions}"
    return models.Trial(
        task=task,
        schedule_hash=hashlib.sha256(schedule.encode()).hexdigest(),
        record=record,
        **{name: fields[name] for name in _OF_TRIAL},
        **{name: measured[name] for name in _OF_MEASUREMENT},
    )


#: Columns that are fields of a record, and of its measurement.
_OF_TRIAL = ("round", "sketch_index", "decisions", "predicted_us", "elapsed_s")
_OF_MEASUREMENT = (
    "latency_us",
    "error",
    "message",
    "checked",
    "spread",
    "build_s",
    "run_s",
    "device",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """The trial's number, and whether it was there before with the same schedule."""

    number: int
    is_new: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which trials; None selects all."""

    task: int | None = None
    ok: bool | None = None
    error: str | None = None
    round: int | None = None
    best_only: bool = False


def append(tx: orm.Session, fence: leases.Fence, new: models.Trial) -> Written:
    """Write a trial (`row`) and its event.

    Raises:
        LeaseLost: the job is another tuner's; nothing is written.
    """
    job = leases.lock_job(tx, fence)
    task = _task(tx, job.id, new.task)
    earlier = tx.scalar(_same(job.id, new))
    if earlier is not None and earlier.error != INFRASTRUCTURE:
        return Written(earlier.number, False)
    number = job.n_trials + 1 if earlier is None else earlier.number
    if earlier is not None:
        tx.delete(earlier)
        tx.flush()
    latency_us = new.latency_us if new.checked else None
    is_best = latency_us is not None and (task.best_us is None or latency_us < task.best_us)
    _count(job, task, new, earlier)
    curve_us = None
    if is_best:
        task.best_us, task.best_trial = new.latency_us, number
        tx.flush()
        curve_us = weighted(tx, job.id, models.Task.best_us)
        job.best_us = curve_us
    new.job_id, new.number = job.id, number
    new.best_us, new.is_best, new.curve_us = task.best_us, is_best, curve_us
    new.measured_s, new.measured_at = job.measured_s, columns.db_now()
    tx.add(new)
    tx.flush()
    events.append(tx, job.id, events.Type.TRIAL, _payload(new, number, task, is_best, curve_us))
    _credit(tx, job.worker_id, new)
    return Written(number, True)


def remeasure(tx: orm.Session, fence: leases.Fence, new: models.Trial) -> None:
    """Write a longer measurement of a candidate that is a trial already.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    task = _task(tx, job.id, new.task)
    trial = tx.scalar(_same(job.id, new))
    if trial is None:
        return
    trial.final_us, trial.final_error = new.latency_us if new.checked else None, new.error
    trial.final_record = new.record
    job.elapsed_s = max(job.elapsed_s, new.elapsed_s)
    job.measured_s += new.run_s
    tx.flush()
    _set_best(tx, task)
    job.best_us = weighted(tx, job.id, models.Task.best_us)
    tx.flush()
    payload = {
        "trial": trial.number,
        "task": new.task,
        "latency_us": trial.final_us,
        "error": new.error,
        "best_us": task.best_us,
        "curve_us": job.best_us,
        "elapsed_s": new.elapsed_s,
    }
    events.append(tx, job.id, events.Type.FINAL, payload)


def copy(tx: orm.Session, job: models.Job, number: int, source: tuple[int, int]) -> None:
    """Let a task of a new job begin with the trials of a task of another one.

    They follow the trials that the job has, and took it no time.

    Args:
        tx: the transaction.
        job: the new one, locked.
        number: of its task.
        source: job and number of the task whose trials these are; it has the same program.
    """
    task, earlier = _task(tx, job.id, number), _task(tx, *source)
    query = sa.select(models.Trial).where(
        models.Trial.job_id == source[0], models.Trial.task == source[1]
    )
    same = [name for name in models.Trial.__table__.columns.keys() if name not in _COPIED_ANEW]
    copies = []
    for trial in tx.scalars(query.order_by(models.Trial.number)):
        job.n_trials += 1
        curve_us = None
        if trial.is_best:
            task.best_us = trial.latency_us
            tx.flush()
            curve_us = weighted(tx, job.id, models.Task.best_us)
        values = {name: getattr(trial, name) for name in same}
        values |= {"job_id": job.id, "task": number, "number": job.n_trials, "curve_us": curve_us}
        values |= {"elapsed_s": 0.0, "measured_s": 0.0}
        for name in ("record", "final_record"):
            values[name] = _without_time(getattr(trial, name))
        copies.append(values)
    if copies:
        tx.execute(sa.insert(models.Trial), copies)
    for name in ("n_trials", "n_failed", "n_rounds"):
        setattr(task, name, getattr(earlier, name))
    job.n_failed += earlier.n_failed
    _set_best(tx, task)
    job.best_us = weighted(tx, job.id, models.Task.best_us)
    tx.flush()


def page(
    tx: orm.Session, job_id: int, chosen: Filter | None = None, limit: int = 100, after: int = 0
) -> rows.Page[rows.Trial, int]:
    """Trials by number; `after` is the last number of the page before."""
    query = _filtered(job_id, chosen or Filter()).where(models.Trial.number > after)
    selected = list(tx.scalars(query.order_by(models.Trial.number).limit(limit + 1)))
    next_after = selected[limit - 1].number if len(selected) > limit else None
    return rows.Page(tuple(rows.Trial.of(trial) for trial in selected[:limit]), next_after)


def get(tx: orm.Session, job_id: int, number: int) -> rows.Trial:
    """One trial.

    Raises:
        NotFound
    """
    missing = f"job {job_id} has no trial {number}"
    return rows.Trial.of(statements.get(tx, models.Trial, (job_id, number), missing))


def records(tx: orm.Session, job_id: int) -> list[str]:
    """The records (`felix.database.records`) of all trials in order, then those of repeats."""
    trial = models.Trial
    query = sa.select(trial.record, trial.final_record).where(trial.job_id == job_id)
    lines = tx.execute(query.order_by(trial.number)).all()
    return [first for first, _ in lines] + [again for _, again in lines if again is not None]


def error_counts(tx: orm.Session, job_id: int) -> dict[str, int]:
    """How many trials failed, by error class."""
    trial = models.Trial
    query = sa.select(trial.error, sa.func.count()).where(
        trial.job_id == job_id, trial.error.is_not(None)
    )
    return {str(kind): int(count) for kind, count in tx.execute(query.group_by(trial.error))}


def _count(
    job: models.Job, task: models.Task, new: models.Trial, earlier: models.Trial | None
) -> None:
    """Add a trial to the counts; one that overwrites was counted as failed."""
    failed = int(new.error is not None)
    n_trials, n_failed = (1, failed) if earlier is None else (0, failed - 1)
    for counts in (job, task):
        counts.n_trials += n_trials
        counts.n_failed += n_failed
    task.n_rounds = max(task.n_rounds, new.round + 1)
    job.elapsed_s = max(job.elapsed_s, new.elapsed_s)
    job.measured_s += new.run_s
    if new.error != INFRASTRUCTURE:
        job.attempts = 1  # attempts count from the last progress


def _task(tx: orm.Session, job_id: int, number: int) -> models.Task:
    return statements.get(tx, models.Task, (job_id, number), f"job {job_id} has no task {number}")


def _same(job_id: int, new: models.Trial) -> sa.Select[models.Trial]:
    """The trial of the same schedule."""
    return sa.select(models.Trial).where(
        models.Trial.job_id == job_id,
        models.Trial.task == new.task,
        models.Trial.schedule_hash == new.schedule_hash,
    )


#: Columns of a copied trial that are not the original's.
_COPIED_ANEW = frozenset(
    {"job_id", "task", "number", "curve_us", "elapsed_s", "measured_s", "record", "final_record"}
)


def _without_time(record: str | None) -> str | None:
    """A record that took no time of this run."""
    if record is None:
        return None
    return json.dumps({**json.loads(record), "elapsed_s": 0.0}, separators=(",", ":"))


def _set_best(tx: orm.Session, task: models.Task) -> None:
    """The task's best trial and latency, as what was measured last of each trial has it."""
    best = tx.execute(_effective_best(task.job_id, task.number)).first()
    task.best_us = None if best is None else best[0]
    task.best_trial = None if best is None else best[1]
    tx.flush()


def _effective_best(job_id: int, task: int) -> sa.Select[float, int]:
    """Latency and number of a task's best trial: what was measured last of each counts."""
    trial = models.Trial
    counts = sa.case(
        (trial.final_record.is_not(None), trial.final_us),
        (trial.checked.is_(True), trial.latency_us),
    )
    query = sa.select(counts, trial.number).where(
        trial.job_id == job_id, trial.task == task, counts.is_not(None)
    )
    return query.order_by(counts, trial.number).limit(1)


def weighted(tx: orm.Session, job_id: int, column: Any) -> float | None:
    """Sum of weight x column over the tasks; None while one has none."""
    missing = sa.func.count() - sa.func.count(column)
    query = sa.select(missing, sa.func.sum(models.Task.weight * column))
    n_missing, total = tx.execute(query.where(models.Task.job_id == job_id)).one()
    return None if n_missing else float(total)


def _payload(
    new: models.Trial, number: int, task: models.Task, is_best: bool, curve_us: float | None
) -> dict[str, Any]:
    return {
        "trial": number,
        "task": new.task,
        "latency_us": new.latency_us,
        "error": new.error,
        "predicted_us": new.predicted_us,
        "best_us": task.best_us,
        "is_best": is_best,
        "curve_us": curve_us,
        "elapsed_s": new.elapsed_s,
    }


def _credit(tx: orm.Session, worker_id: int | None, new: models.Trial) -> None:
    worker = models.Worker
    counts = {
        "n_trials": worker.n_trials + 1,
        "n_infrastructure": worker.n_infrastructure + int(new.error == INFRASTRUCTURE),
    }
    statements.update(tx, worker, worker.id == worker_id, **counts)


def _filtered(job_id: int, chosen: Filter) -> sa.Select[models.Trial]:
    trial = models.Trial
    query = sa.select(trial).where(trial.job_id == job_id)
    for name in ("task", "error", "round"):
        if (value := getattr(chosen, name)) is not None:
            query = query.where(getattr(trial, name) == value)
    if chosen.ok is not None:
        query = query.where(trial.error.is_(None) if chosen.ok else trial.error.is_not(None))
    if chosen.best_only:
        query = query.where(trial.is_best.is_(True))
    return query
