"""What users do to a job: pause, resume, cancel, stop early, retry, rename, rank, tag.

A verb that changes nothing (pausing a paused job) returns the job as it is. A tuner that
works on the job learns of it at its next heartbeat: see `server.states`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, models, visibility
from server.store import events, jobs, rows, statements

_S = states.State


def pause(tx: orm.Session, job_id: int) -> rows.Job:
    """Stop tuning for now; everything measured stays.

    Raises:
        NotFound, IllegalMove
    """
    job = events.lock_job(tx, job_id)
    if _S(job.state) not in (_S.PAUSED, _S.PAUSING):
        events.change_state(tx, job, _S.PAUSED if job.state == _S.QUEUED else _S.PAUSING)
    return jobs.get(tx, job_id)


def resume(tx: orm.Session, job_id: int) -> rows.Job:
    """Go on with a paused job.

    Raises:
        NotFound, IllegalMove
    """
    job = events.lock_job(tx, job_id)
    if _S(job.state) not in (_S.QUEUED, _S.RUNNING):
        if job.state not in (_S.PAUSED, _S.PAUSING):
            raise errors.IllegalMove(f"a job that is {job.state} cannot be resumed")
        events.change_state(tx, job, _S.QUEUED if job.state == _S.PAUSED else _S.RUNNING)
    return jobs.get(tx, job_id)


def cancel(tx: orm.Session, job_id: int) -> rows.Job:
    """Drop the job; what was measured stays readable, there is no artifact.

    Raises:
        NotFound, IllegalMove
    """
    job = events.lock_job(tx, job_id)
    if _S(job.state) not in (_S.CANCELLED, _S.CANCELLING):
        held = job.lease_token is not None
        events.change_state(tx, job, _S.CANCELLING if held else _S.CANCELLED)
    return jobs.get(tx, job_id)


def stop(tx: orm.Session, job_id: int) -> rows.Job:
    """End the job early, with the artifact of the best schedules so far.

    Raises:
        NotFound, IllegalMove
        Conflict: nothing was measured yet and nobody works on it.
    """
    job = events.lock_job(tx, job_id)
    if job.state != _S.STOPPING:
        if job.lease_token is None and job.n_trials == 0:
            raise errors.Conflict(
                f"job {job_id} has measured nothing yet, so there is no result to end with: "
                "cancel it instead"
            )
        events.change_state(tx, job, _S.STOPPING, not_before=None)
    return jobs.get(tx, job_id)


def retry(tx: orm.Session, job_id: int) -> rows.Job:
    """Go on with a failed or cancelled job; its attempts count anew.

    Raises:
        NotFound, IllegalMove
    """
    job = events.lock_job(tx, job_id)
    if job.state not in (_S.FAILED, _S.CANCELLED):
        raise errors.IllegalMove(f"a job that is {job.state} cannot be retried")
    cleared = {"attempts": 0, "not_before": None, "error": None, "message": None, "reason": None}
    events.change_state(tx, job, _S.QUEUED, {"retry": True}, **cleared)
    return jobs.get(tx, job_id)


def change(
    tx: orm.Session,
    job_id: int,
    *,
    name: str | None = None,
    note: str | None = None,
    priority: int | None = None,
    tags: Collection[str] | None = None,
) -> rows.Job:
    """Change what a user may change in any state; None leaves a field.

    Raises:
        NotFound
    """
    job = events.lock_job(tx, job_id)
    fields = {"name": name, "note": note, "priority": priority}
    changes: dict[str, Any] = {field: v for field, v in fields.items() if v is not None}
    if changes:
        values = changes | {"updated_at": columns.db_now()}
        statements.update(tx, models.Job, models.Job.id == job.id, **values)
    if tags is not None:
        tx.execute(sa.delete(models.JobTag).where(models.JobTag.job_id == job_id))
        tx.add_all(models.JobTag(job_id=job_id, tag=tag) for tag in sorted(set(tags)))
        tx.flush()
        changes["tags"] = sorted(set(tags))
    if changes:
        events.append(tx, job_id, events.Type.CHANGED, changes)
    return jobs.get(tx, job_id)


def delete(tx: orm.Session, job_id: int) -> list[str]:
    """Remove an ended job and all it has; sha256 of blobs that nothing names any more.

    Raises:
        NotFound
        Conflict: the job has not ended.
    """
    job = events.lock_job(tx, job_id)
    if _S(job.state) not in states.ENDED:
        raise errors.Conflict(f"job {job_id} is {job.state}: cancel it first")
    named = models.Artifact.sha256
    mine = set(tx.scalars(sa.select(named).where(models.Artifact.job_id == job_id)))
    tx.execute(sa.delete(models.Job).where(models.Job.id == job_id))
    by_any_project = {visibility.UNRESTRICTED: True}
    still_named = tx.scalars(
        sa.select(named).where(named.in_(mine)), execution_options=by_any_project
    )
    return sorted(mine - set(still_named))
