"""Files of jobs: the blob is stored first, the row second; and how long they stay.

A content may belong to files of several jobs and projects. Whoever writes a row for a content or
removes the content holds the content's lock, in a transaction that looks first: so a content that
a row names is there.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import columns, models, visibility
from server.store import blobs, events, leases, rows, statements


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
    statements.add(tx, row)
    payload = {"name": new.name, "sha256": new.sha256, "size_bytes": new.size_bytes}
    events.append(tx, job_id, events.Type.ARTIFACT, payload)
    return rows.Artifact.of(row)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The best schedule of a task: TVMScript, generated source, assembly (of a GPU PTX)."""

    task: int
    schedule: str
    source: str
    #: empty where there is none
    assembly: str = ""


def store_code(tx: orm.Session, fence: leases.Fence, code: Code) -> None:
    """Store TVMScript and generated code of a task's best schedule, for viewers.

    Raises:
        LeaseLost
    """
    leases.lock_job(tx, fence)
    where = (models.Task.job_id == fence.job_id, models.Task.number == code.task)
    texts = {"schedule": code.schedule, "source": code.source, "assembly": code.assembly or None}
    statements.update(tx, models.Task, *where, **texts)


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


#: Jobs with this tag keep their files.
KEEP_TAG = "keep"

_DAY_S = 86_400.0


def expired_jobs(tx: orm.Session, default_days: int | None, limit: int = 100) -> list[int]:
    """Ended jobs whose files are older than their project keeps them, oldest first.

    Args:
        default_days: of projects that set none; None: for ever.
    """
    job, project = models.Job, models.Project
    tagged = sa.select(models.JobTag.job_id).where(models.JobTag.tag == KEEP_TAG)
    has_files = sa.exists().where(models.Artifact.job_id == job.id)
    job_ids: list[int] = []
    for row in tx.scalars(sa.select(project)):
        days = default_days if row.retention_days is None else row.retention_days
        if days is None:
            continue
        query = sa.select(job.id).where(
            job.project == row.name,
            job.finished_at < columns.db_now(-_DAY_S * days),
            job.id.not_in(tagged),
            has_files,
        )
        job_ids.extend(tx.scalars(query.order_by(job.id).limit(limit)))
    return sorted(job_ids)[:limit]


def remove_files(tx: orm.Session, job_id: int) -> list[str]:
    """Remove the files of an ended job, with an event that names them; contents stay for now.

    Returns:
        The sha256 of each file's content.

    Raises:
        NotFound: there is no such job.
    """
    job, artifact = events.lock_job(tx, job_id), models.Artifact
    if job.finished_at is None:  # it was retried meanwhile
        return []
    query = sa.select(artifact.name, artifact.sha256, artifact.size_bytes)
    files = tx.execute(query.where(artifact.job_id == job_id).order_by(artifact.name)).all()
    if not files:  # another process was first
        return []
    statements.delete(tx, artifact, artifact.job_id == job_id)
    names, contents, sizes = zip(*files, strict=True)
    payload = {"names": list(names), "size_bytes": sum(sizes)}
    events.append(tx, job_id, events.Type.REMOVED, payload)
    return list(contents)


def lock_content(tx: orm.Session, sha256: str) -> None:
    """Hold the lock of a content until the transaction ends; it must be one that writes."""
    if tx.get_bind().dialect.name == "postgresql":  # SQLite's write transactions hold all locks
        key = int.from_bytes(bytes.fromhex(sha256[:16]), "big", signed=True)
        lock = sa.select(sa.func.pg_advisory_xact_lock(key))
        tx.execute(lock, execution_options={visibility.UNRESTRICTED: True})


def keep_content(tx: orm.Session, store: blobs.BlobStore, sha256: str, path: pathlib.Path) -> None:
    """Make sure that a content is there when the row that this transaction writes is.

    Raises:
        BlobError
    """
    lock_content(tx, sha256)
    if not store.has(sha256):
        store.put(path)


def remove_content(tx: orm.Session, store: blobs.BlobStore, sha256: str) -> bool:
    """Remove a content unless a file of any project names it; whether it was removed.

    Raises:
        BlobError
    """
    lock_content(tx, sha256)
    query = sa.select(models.Artifact.id).where(models.Artifact.sha256 == sha256).limit(1)
    if tx.scalar(query.execution_options(**{visibility.UNRESTRICTED: True})) is not None:
        return False
    store.delete(sha256)
    return True
