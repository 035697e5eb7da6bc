"""How long files stay: those of old jobs are removed, contents that no file names any more too.

A content may belong to files of several jobs and projects. Whoever writes a row for a content or
removes the content holds the content's lock, in a transaction that looks first: so a content that
a row names is there.
"""

from __future__ import annotations

import dataclasses
import pathlib

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models, visibility
from server.store import blobs, events, transitions

#: Jobs with this tag keep their files.
KEEP_TAG = "keep"

_DAY_S = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """The files of a job that were removed."""

    job_id: int
    names: tuple[str, ...]
    contents: frozenset[str]


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


def remove_files(tx: orm.Session, job_id: int) -> Removed:
    """Remove the files of an ended job, with an event that names them; contents stay for now.

    Raises:
        NotFound: there is no such job.
    """
    job, artifact = transitions.lock(tx, job_id), models.Artifact
    if job.finished_at is None:  # it was retried meanwhile
        return Removed(job_id, (), frozenset())
    query = sa.select(artifact.name, artifact.sha256, artifact.size_bytes)
    files = tx.execute(query.where(artifact.job_id == job_id).order_by(artifact.name)).all()
    if not files:  # another process was first
        return Removed(job_id, (), frozenset())
    tx.execute(
        sa.delete(artifact)
        .where(artifact.job_id == job_id)
        .execution_options(synchronize_session=False)
    )
    removed = Removed(
        job_id, tuple(name for name, _, _ in files), frozenset(sha256 for _, sha256, _ in files)
    )
    payload = {"names": list(removed.names), "size_bytes": sum(size for _, _, size in files)}
    events.append(tx, job_id, events.Type.REMOVED, payload)
    return removed


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
