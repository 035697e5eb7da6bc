"""The append-only log of each job.

`seq` is taken by `UPDATE jobs SET last_seq = last_seq + 1 ... RETURNING` in the transaction of
what happened. The row stays locked until that commits, so sequences commit in order and a reader
that reads what comes `after` the last one it has misses nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, models
from server.store import rows, statements, webhooks


class Type(enum.StrEnum):
    """Kinds of events; the payload of each."""

    #: A move: reason, error, message, worker, attempt where they apply.
    STATE = "state"
    #: A user changed name, note, priority or tags: what they are now.
    CHANGED = "changed"
    #: Tuning began or went on: tasks, trials, seconds, resumed_trials, model, worker, device.
    STARTED = "started"
    #: The sketches of a task are ready: task, n_sketches, extract_s.
    OPENED = "opened"
    #: The unscheduled program was timed: task, latency_us, message.
    BASELINE = "baseline"
    #: Candidates were chosen: task, round, n_candidates, n_invalid, predicted_us, elapsed_s.
    ROUND = "round"
    #: A trial was written: trial, task, latency_us, error, best_us, is_best, curve_us, elapsed_s.
    TRIAL = "trial"
    #: Earlier measurements count: jobs, n_trials; versions differ: only their schedules are tried.
    REUSED = "reused"
    #: What ships of a task: task, ships_unscheduled, tuned_us, unscheduled_us, curve_us.
    CHOSEN = "chosen"
    #: One of the fastest was measured again, longer: trial, task, latency_us, error, best_us.
    FINAL = "final"
    #: The cost model was fine-tuned: n_records, loss_before, loss_after, accepted.
    TRAINED = "trained"
    #: The network was built: call_us, max_error, both null where its device is elsewhere; or not:
    #: failure.
    NETWORK = "network"
    #: A checkpoint was written: n_records, bytes.
    CHECKPOINT = "checkpoint"
    #: An artifact can be downloaded: name, sha256, size_bytes.
    ARTIFACT = "artifact"
    #: Files were removed, because the project keeps them so long only: names, size_bytes.
    REMOVED = "removed"
    #: Something a person should know: message.
    WARNING = "warning"


#: Of which there is one for each candidate or round; plots and tables show the same.
FREQUENT = frozenset({Type.TRIAL, Type.ROUND, Type.CHECKPOINT})


def append(
    tx: orm.Session,
    job_id: int,
    kind: Type,
    payload: Mapping[str, Any],
    move: tuple[states.State | None, states.State] | None = None,
) -> int:
    """Write an event; its `seq`.

    Raises:
        NotFound: there is no such job.
    """
    taken = (
        sa.update(models.Job)
        .where(models.Job.id == job_id)
        .values(last_seq=models.Job.last_seq + 1, updated_at=columns.db_now())
        .returning(models.Job.last_seq)
        .execution_options(synchronize_session=False)
    )
    seq = tx.execute(taken).scalar()
    if seq is None:
        raise errors.NotFound(f"there is no job {job_id}")
    before, after = (None, None) if move is None else move
    tx.execute(
        sa.insert(models.Event).values(
            job_id=job_id,
            seq=seq,
            at=columns.db_now(),
            type=str(kind),
            payload=dict(payload),
            from_state=None if before is None else str(before),
            to_state=None if after is None else str(after),
        )
    )
    if after is not None:
        webhooks.notify(tx, job_id, seq, after)
    return seq


def after(
    tx: orm.Session, job_id: int, seq: int = 0, limit: int = 500, kinds: Sequence[Type] = ()
) -> list[rows.Event]:
    """Events after `seq`, oldest first; of some kinds only, if given."""
    query = sa.select(models.Event).where(models.Event.job_id == job_id, models.Event.seq > seq)
    if kinds:
        query = query.where(models.Event.type.in_([str(kind) for kind in kinds]))
    newer = tx.scalars(query.order_by(models.Event.seq).limit(limit))
    return [rows.Event.of(event) for event in newer]


def last(tx: orm.Session, job_id: int) -> int | None:
    """The newest sequence number of a job; None if there is no such job."""
    return tx.scalar(sa.select(models.Job.last_seq).where(models.Job.id == job_id))


def lock_job(tx: orm.Session, job_id: int) -> models.Job:
    """The job, locked until the transaction ends.

    Raises:
        NotFound: there is no such job.
    """
    query = sa.select(models.Job).where(models.Job.id == job_id).with_for_update()
    job = tx.scalar(query.execution_options(populate_existing=True))
    if job is None:
        raise errors.NotFound(f"there is no job {job_id}")
    return job


def change_state(
    tx: orm.Session,
    job: models.Job,
    to: states.State,
    payload: Mapping[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Move a locked job and write the event.

    The lease ends where the new state has none; `changes` are further columns.

    Raises:
        IllegalMove: the table has no such move.
    """
    before = states.State(job.state)
    states.check(before, to)
    values: dict[str, Any] = {"state": str(to), "updated_at": columns.db_now(), **changes}
    if to not in states.MAY_BE_LEASED:
        values |= {"lease_token": None, "lease_expires_at": None, "worker_id": None}
    values["finished_at"] = columns.db_now() if to in states.ENDED else None
    statements.update(tx, models.Job, models.Job.id == job.id, **values)
    append(tx, job.id, Type.STATE, payload or {}, (before, to))
    tx.refresh(job)
