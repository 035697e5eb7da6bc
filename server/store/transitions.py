"""Changing a job's state: the one place that does it, with its event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, models
from server.store import events


def lock(tx: orm.Session, job_id: int) -> models.Job:
    """The job, locked until the transaction ends.

    Raises:
        NotFound: there is no such job.
    """
    query = sa.select(models.Job).where(models.Job.id == job_id).with_for_update()
    job = tx.scalar(query.execution_options(populate_existing=True))
    if job is None:
        raise errors.NotFound(f"there is no job {job_id}")
    return job


def move(
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
    statement = sa.update(models.Job).where(models.Job.id == job.id).values(**values)
    tx.execute(statement.execution_options(synchronize_session=False))
    events.append(tx, job.id, events.Type.STATE, payload or {}, (before, to))
    tx.refresh(job)
