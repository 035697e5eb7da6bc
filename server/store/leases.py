"""Who works on a job: claims by lease with a fencing token, renewals, ends, the reaper.

A claim gives the job a new random token. Every write of a tuner names it, and one that is no
longer the job's is refused (`LeaseLost`), however late it comes: a tuner that was thought dead
cannot disturb its successor. The database's clock alone decides what has expired.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, models
from server.store import events, jobs, rows, statements, turns

_S = states.State


@dataclasses.dataclass(frozen=True, slots=True)
class Fence:
    """The right to write to a job."""

    job_id: int
    token: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A job to work on, and the right to."""

    job: rows.Job
    fence: Fence


def claim(
    tx: orm.Session, worker_id: int, target_keys: Collection[str], lease_s: float
) -> Claim | None:
    """Take the job whose turn it is, of those that this tuner's devices can measure.

    The most urgent ones go first; of them, those of the key that has the fewest tuners and had
    least of them lately; of them, the oldest. None if there is none.
    """
    job, job_model = models.Job, None
    for turn in turns.order(tx, target_keys):
        query = (
            sa.select(job)
            .where(*turns.claimable(target_keys), *turn.jobs)
            .order_by(job.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        job_model = tx.scalar(query.execution_options(populate_existing=True))
        if job_model is not None:
            break
    if job_model is None:
        return None
    token = secrets.token_urlsafe(24)
    lease: dict[str, Any] = {
        "lease_token": token,
        "lease_expires_at": columns.db_now(lease_s),
        "worker_id": worker_id,
        "attempts": job_model.attempts + 1,
        "not_before": None,
        "started_at": sa.func.coalesce(job.started_at, columns.db_now()),
    }
    payload = {"worker": worker_id, "attempt": job_model.attempts + 1}
    if job_model.state == _S.QUEUED:
        events.change_state(tx, job_model, _S.RUNNING, payload, **lease)
    else:  # it is to end early and stays in `stopping`
        _update(tx, job_model.id, lease)
    return Claim(jobs.get(tx, job_model.id), Fence(job_model.id, token))


def beat(tx: orm.Session, fence: Fence, lease_s: float) -> states.Instruction:
    """Renew the lease; the instruction for the tuner."""
    renewed = (
        sa.update(models.Job)
        .where(models.Job.id == fence.job_id, models.Job.lease_token == fence.token)
        .values(lease_expires_at=columns.db_now(lease_s))
        .returning(models.Job.state)
        .execution_options(synchronize_session=False)
    )
    state = tx.execute(renewed).scalar()
    return states.Instruction.LEASE_LOST if state is None else states.INSTRUCTIONS[_S(state)]


def lock_job(tx: orm.Session, fence: Fence) -> models.Job:
    """The job, locked until the transaction ends, if the fence still holds.

    Raises:
        LeaseLost: the lease is over, or another tuner has one.
    """
    query = sa.select(models.Job).where(
        models.Job.id == fence.job_id, models.Job.lease_token == fence.token
    )
    job = tx.scalar(query.with_for_update().execution_options(populate_existing=True))
    if job is None:
        raise errors.LeaseLost()
    return job


def begin(tx: orm.Session, fence: Fence, target_key: str, resolved_target: str) -> None:
    """Say for which device exactly the job is tuned; from now on only such devices go on.

    Raises:
        LeaseLost
    """
    lock_job(tx, fence)
    _update(tx, fence.job_id, {"target_key": target_key, "resolved_target": resolved_target})


def release(
    tx: orm.Session,
    fence: Fence,
    payload: Mapping[str, Any] | None = None,
    is_attempt: bool = False,
) -> states.State:
    """End the lease, the job as it is: paused or cancelled if a user asked for it, else queued.

    Args:
        tx: a transaction that writes.
        fence: of the lease.
        payload: of the event.
        is_attempt: whether this claim counts as one that failed; usually it does not.

    Raises:
        LeaseLost
    """
    job = lock_job(tx, fence)
    attempts = job.attempts if is_attempt else max(0, job.attempts - 1)
    return _end_lease(tx, job, {"attempts": attempts}, payload or {})


def succeed(tx: orm.Session, fence: Fence, reason: str) -> states.State:
    """The job is done; if it was to be cancelled meanwhile, it is cancelled.

    Raises:
        LeaseLost
    """
    job = lock_job(tx, fence)
    to = _S.CANCELLED if job.state == _S.CANCELLING else _S.SUCCEEDED
    events.change_state(tx, job, to, {"reason": reason}, reason=reason, error=None, message=None)
    return to


def fail(
    tx: orm.Session, fence: Fence, error: str, message: str, retry_after_s: float | None
) -> states.State:
    """This attempt failed: try again after so many seconds, or (None) never.

    Raises:
        LeaseLost
    """
    job = lock_job(tx, fence)
    failure = {"error": error, "message": message}
    if retry_after_s is None and job.state != _S.CANCELLING:
        events.change_state(tx, job, _S.FAILED, failure, **failure, reason="failed")
        return _S.FAILED
    later = columns.db_now(retry_after_s) if retry_after_s else None
    return _end_lease(tx, job, {**failure, "not_before": later}, failure)


def any_expired(tx: orm.Session) -> bool:
    """Whether there is anything to reap."""
    expired = sa.select(models.Job.id).where(models.Job.lease_expires_at < columns.db_now())
    return tx.scalar(expired.limit(1)) is not None


def reap(tx: orm.Session, max_attempts: int, limit: int = 100) -> dict[int, states.State]:
    """Take jobs away from tuners that stopped renewing; each with its event, in `tx`.

    Returns:
        What became of each job whose lease expired, by its number.
    """
    query = (
        sa.select(models.Job)
        .where(models.Job.lease_expires_at < columns.db_now())
        .order_by(models.Job.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    reaped: dict[int, states.State] = {}
    for job in tx.scalars(query.execution_options(populate_existing=True)).all():
        failure = {
            "error": "lease_expired",
            "message": f"the tuner stopped renewing its lease (attempt {job.attempts})",
            "worker": job.worker_id,
        }
        if job.attempts >= max_attempts and job.state != _S.CANCELLING:
            error_columns = {name: failure[name] for name in ("error", "message")}
            events.change_state(tx, job, _S.FAILED, failure, reason="failed", **error_columns)
            reaped[job.id] = _S.FAILED
        else:
            reaped[job.id] = _end_lease(tx, job, {}, failure)
    return reaped


#: The state of a job after its tuner released it; `stopping` stays.
_RELEASED: Mapping[states.State, states.State] = {
    _S.RUNNING: _S.QUEUED,
    _S.PAUSING: _S.PAUSED,
    _S.CANCELLING: _S.CANCELLED,
}


def _end_lease(
    tx: orm.Session, job: models.Job, changes: dict[str, Any], payload: Mapping[str, Any]
) -> states.State:
    state = _S(job.state)
    if state is _S.STOPPING:
        none = {"lease_token": None, "lease_expires_at": None, "worker_id": None}
        _update(tx, job.id, changes | none)
        return state
    events.change_state(tx, job, _RELEASED[state], payload, **changes)
    return _RELEASED[state]


def _update(tx: orm.Session, job_id: int, values: Mapping[str, Any]) -> None:
    changes = {**values, "updated_at": columns.db_now()}
    statements.update(tx, models.Job, models.Job.id == job_id, **changes)
