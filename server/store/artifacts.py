"""Files of a job that users download: the blob is stored first, the row second."""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import columns, models
from server.store import events, leases, rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewArtifact:
    """A file whose content is in the blob store already."""

    name: str
    #: `bundle` is what a finished job has, `network` the network it built; `input` a user's file
    kind: str
    media_type: str
    sha256: str
    size_bytes: int


def add(tx: orm.Session, fence: leases.Fence, new: NewArtifact) -> rows.Artifact:
    """Name a stored blob; an artifact of that name is replaced.

    Raises:
        LeaseLost
    """
    leases.lock_job(tx, fence)
    return attach(tx, fence.job_id, new)


def attach(tx: orm.Session, job_id: int, new: NewArtifact) -> rows.Artifact:
    """`add` without a fence: for the file a job is made from, in the transaction that makes it."""
    where = (models.Artifact.job_id == job_id, models.Artifact.name == new.name)
    tx.execute(sa.delete(models.Artifact).where(*where))
    row = models.Artifact(job_id=job_id, created_at=columns.db_now(), **dataclasses.asdict(new))
    tx.add(row)
    tx.flush()
    tx.refresh(row)
    payload = {"name": new.name, "sha256": new.sha256, "size_bytes": new.size_bytes}
    events.append(tx, job_id, events.Type.ARTIFACT, payload)
    return rows.Artifact.of(row)


def store_code(
    tx: orm.Session,
    fence: leases.Fence,
    task: int,
    schedule: str,
    source: str,
    assembly: str = "",
) -> None:
    """Store TVMScript and generated code of a task's best schedule, for viewers.

    Args:
        assembly: empty where there is none.

    Raises:
        LeaseLost
    """
    leases.lock_job(tx, fence)
    tx.execute(
        sa.update(models.Task)
        .where(models.Task.job_id == fence.job_id, models.Task.number == task)
        .values(schedule=schedule, source=source, assembly=assembly or None)
        .execution_options(synchronize_session=False)
    )


def of_job(tx: orm.Session, job_id: int) -> list[rows.Artifact]:
    """All artifacts of a job, by name."""
    row = models.Artifact
    artifacts = tx.scalars(sa.select(row).where(row.job_id == job_id).order_by(row.name))
    return [rows.Artifact.of(artifact) for artifact in artifacts]


def get(tx: orm.Session, job_id: int, name: str) -> rows.Artifact:
    """One artifact by its name.

    Raises:
        NotFound
    """
    row = models.Artifact
    artifact = tx.scalar(sa.select(row).where(row.job_id == job_id, row.name == name))
    if artifact is None:
        raise errors.NotFound(f"job {job_id} has no artifact {name!r}")
    return rows.Artifact.of(artifact)


def description(job: rows.Job) -> dict[str, Any]:
    """What the bundle of a job says of it: what was submitted, and how it ended."""
    return {
        "id": job.id,
        "name": job.name,
        "kind": job.kind,
        "operator": job.op,
        "workload": job.workload,
        "target": job.target,
        "trials": job.trials,
        "seconds": job.seconds,
        "seed": job.seed,
        "strategy": job.strategy,
        "options": job.options,
        "created": job.created_at.isoformat(),
        "reused_from": job.reused_from,
        "reason": job.reason,
        "latency_us": job.best_us,
        "unscheduled_us": job.unscheduled_us,
    }
