"""Jobs: made once however often a client repeats the request, and read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, models
from server.store import events, projects, rows, statements


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A tensor program; `program` is `felix.Task.to_json`."""

    name: str
    weight: float
    flops: float
    min_bytes: float
    program: str
    #: `felix.Task.program_key`
    program_key: str | None = None
    #: `felix.database.outcome.family`
    family: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What to tune and for how long; see `server.database.models.Job`."""

    name: str
    kind: str
    op: str
    workload: dict[str, Any]
    target: str
    target_key: str
    tasks: tuple[NewTask, ...]
    trials: int | None
    seconds: float | None
    strategy: str
    seed: int = 0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    priority: int = 0
    note: str = ""
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A client's `Idempotency-Key` and the sha256 of its request."""

    key: str
    request_sha256: str

    @classmethod
    def of(cls, key: str | None, content: Any) -> Self | None:
        """That of a request with this content, as JSON has it; None without a key."""
        if key is None:
            return None
        text = json.dumps(content, sort_keys=True)
        return cls(key=key, request_sha256=hashlib.sha256(text.encode()).hexdigest())


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """What a key may have; its project's limits are in the database."""

    max_running_jobs: int
    max_trials: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestedJob:
    """The job of a request, and whether this request made it."""

    job: rows.Job
    is_new: bool


def create(
    tx: orm.Session,
    new: NewJob,
    key_id: int | None = None,
    idempotency: IdempotencyKey | None = None,
    quota: Quota | None = None,
    n_bytes: int = 0,
) -> RequestedJob:
    """Queue a job in its key's project, or return the one that the same request made before.

    Args:
        n_bytes: of the file it comes with.

    Raises:
        Conflict: the idempotency key was used for another request.
        QuotaExceeded: the key or its project has too many active jobs, or the job asks for too
            many trials.
        StorageFull: the project's files take all the space it may have.
    """
    project = project_of(tx, key_id)
    if key_id is not None:
        earlier = None if idempotency is None else made_before(tx, key_id, idempotency)
        if earlier is not None:
            return RequestedJob(earlier, False)
    if quota is not None:
        check_quota(tx, new.trials, key_id, quota, n_bytes)
    job = _insert(tx, new, project, key_id)
    if key_id is not None and idempotency is not None:
        tx.add(
            models.Idempotency(
                key_id=key_id,
                idempotency_key=idempotency.key,
                request_sha256=idempotency.request_sha256,
                job_id=job.id,
                created_at=columns.db_now(),
            )
        )
    for number, task in enumerate(new.tasks):
        tx.add(models.Task(job_id=job.id, number=number, **dataclasses.asdict(task)))
    for tag in sorted(set(new.tags)):
        tx.add(models.JobTag(job_id=job.id, tag=tag))
    tx.flush()
    events.append(tx, job.id, events.Type.STATE, {}, (None, states.State.QUEUED))
    return RequestedJob(get(tx, job.id), True)


def project_of(tx: orm.Session, key_id: int | None) -> str:
    """The project of a key, whose requests now come one after the other; without one the default.

    Raises:
        NotFound: there is no such key.
    """
    if key_id is None:
        return projects.DEFAULT
    query = sa.select(models.Key.project).where(models.Key.id == key_id).with_for_update()
    project = tx.scalar(query)
    if project is None:
        raise errors.NotFound(f"there is no key {key_id}")
    return project


def made_before(tx: orm.Session, key_id: int, idempotency: IdempotencyKey) -> rows.Job | None:
    """The job of an earlier request with this idempotency key; None if there is none.

    Raises:
        Conflict: that request was another one.
    """
    earlier = tx.get(models.Idempotency, (key_id, idempotency.key))
    if earlier is None:
        return None
    if earlier.request_sha256 != idempotency.request_sha256:
        raise errors.Conflict(
            "this Idempotency-Key was used for another request: take a new key for a new job"
        )
    return get(tx, earlier.job_id)


def get(tx: orm.Session, job_id: int) -> rows.Job:
    """A job.

    Raises:
        NotFound: there is none of that number.
    """
    job = statements.get(tx, models.Job, job_id, f"there is no job {job_id}")
    return as_rows(tx, [job])[0]


def some(tx: orm.Session, job_ids: Sequence[int]) -> list[rows.Job]:
    """The jobs of these numbers that there are, in their order."""
    by_id = {
        job.id: job for job in tx.scalars(sa.select(models.Job).where(models.Job.id.in_(job_ids)))
    }
    return as_rows(tx, [by_id[job_id] for job_id in job_ids if job_id in by_id])


def tasks(tx: orm.Session, job_id: int) -> list[rows.Task]:
    """The tasks of a job, in order."""
    query = sa.select(models.Task).where(models.Task.job_id == job_id)
    return [rows.Task.of(task) for task in tx.scalars(query.order_by(models.Task.number))]


def code(tx: orm.Session, job_id: int, number: int) -> tuple[str | None, str | None, str | None]:
    """TVMScript, generated source and assembly (of a GPU PTX) of a task's best schedule; None
    before the artifact.

    Raises:
        NotFound: there is no such task.
    """
    task = models.Task
    query = sa.select(task.schedule, task.source, task.assembly)
    found = tx.execute(query.where(task.job_id == job_id, task.number == number)).one_or_none()
    if found is None:
        raise errors.NotFound(f"job {job_id} has no task {number}")
    schedule, source, assembly = found
    return schedule, source, assembly


def programs(tx: orm.Session, job_id: int) -> list[str]:
    """The tensor programs of a job as `felix.Task.to_json`, in order."""
    query = sa.select(models.Task.program).where(models.Task.job_id == job_id)
    return list(tx.scalars(query.order_by(models.Task.number)))


def is_for(target_key: str) -> sa.ColumnElement[bool]:
    """Selects jobs for a target of this key, or for a certain device of its kind."""
    key = models.Job.target_key
    return sa.or_(key == target_key, key.startswith(f"{target_key}/", autoescape=True))


def as_rows(tx: orm.Session, jobs: Sequence[models.Job]) -> list[rows.Job]:
    """Rows of jobs, with their tags."""
    ids = [job.id for job in jobs]
    query = sa.select(models.JobTag.job_id, models.JobTag.tag).where(models.JobTag.job_id.in_(ids))
    tags: dict[int, list[str]] = {number: [] for number in ids}
    for number, tag in tx.execute(query.order_by(models.JobTag.tag)):
        tags[number].append(tag)
    return [rows.Job.of(job, tags=tuple(tags[job.id])) for job in jobs]


def _insert(tx: orm.Session, new: NewJob, project: str, key_id: int | None) -> models.Job:
    same = [field.name for field in dataclasses.fields(new) if field.name not in ("tasks", "tags")]
    job = models.Job(
        project=project,
        key_id=key_id,
        n_tasks=len(new.tasks),
        flops=sum(task.weight * task.flops for task in new.tasks),
        created_at=columns.db_now(),
        updated_at=columns.db_now(),
        **{name: getattr(new, name) for name in same},
    )
    tx.add(job)
    tx.flush()
    return job


def check_quota(
    tx: orm.Session, trials: int | None, key_id: int | None, quota: Quota, n_bytes: int = 0
) -> None:
    """Whether a key may have one more job of so many trials, with a file of so many bytes.

    Raises:
        QuotaExceeded, StorageFull
    """
    if trials is not None and trials > quota.max_trials:
        raise errors.QuotaExceeded(
            f"{trials} trials are more than the {quota.max_trials} this key may ask for"
        )
    is_active = models.Job.state.in_(states.ACTIVE)
    active = statements.count(tx, models.Job, models.Job.key_id == key_id, is_active)
    if active >= quota.max_running_jobs:
        raise errors.QuotaExceeded(
            f"this key has {active} jobs that are not finished, and may have "
            f"{quota.max_running_jobs}: wait, pause or cancel some"
        )
    projects.check_quota(tx, project_of(tx, key_id), trials, n_bytes)
