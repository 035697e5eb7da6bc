"""Jobs: made once however often a client repeats the request, read, listed."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, keyset, models
from server.store import events, rows
from server.store.projects import projects


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
    seed: int = 0
    strategy: str = "gradient"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    priority: int = 0
    note: str = ""
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A client's `Idempotency-Key` and the sha256 of its request."""

    key: str
    request_sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """What a key may have; its project's limits are in the database."""

    max_running_jobs: int
    max_trials: int


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """The job, and whether this request made it."""

    job: rows.Job
    is_new: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs; empty fields select all. `text` is a part of the name or the operator; a
    `target_key` also finds the keys of the devices of its kind (`llvm`: `llvm/znver4`, ...)."""

    states: tuple[states.State, ...] = ()
    target_key: str | None = None
    kind: str | None = None
    op: str | None = None
    tags: tuple[str, ...] = ()
    text: str | None = None
    key_id: int | None = None
    project: str | None = None
    #: `program_key` or `task_key` of a task
    program: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Some jobs; `next` is the `after` of the next page, None on the last."""

    jobs: tuple[rows.Job, ...]
    next: int | None


class Sort(enum.StrEnum):
    """What a table of jobs is sorted by."""

    NUMBER = "number"
    NAME = "name"
    STATE = "state"
    OWNER = "owner"
    PRIORITY = "priority"
    TRIALS = "trials"
    LATENCY = "latency"
    SPEEDUP = "speedup"

    @property
    def kind(self) -> type:
        """The type of the values."""
        if self in (Sort.NAME, Sort.OWNER):
            return str
        return float if self in (Sort.LATENCY, Sort.SPEEDUP) else int


@dataclasses.dataclass(frozen=True, slots=True)
class SortedPage:
    """Some jobs in an order; `next` is the `after` of the next page, None on the last."""

    jobs: tuple[rows.Job, ...]
    next: keyset.Cursor | None


#: States in the order of a table: what works, what waits, what ended.
_STATE_RANKS: Mapping[states.State, int] = types.MappingProxyType(
    {state: rank for rank, state in enumerate(states.State)}
)


def create(
    tx: orm.Session,
    new: NewJob,
    key_id: int | None = None,
    idempotency: IdempotencyKey | None = None,
    quota: Quota | None = None,
    n_bytes: int = 0,
) -> Made:
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
            return Made(earlier, False)
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
    return Made(get(tx, job.id), True)


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
    job = tx.get(models.Job, job_id, populate_existing=True)
    if job is None:
        raise errors.NotFound(f"there is no job {job_id}")
    return as_rows(tx, [job])[0]


def some(tx: orm.Session, job_ids: Sequence[int]) -> list[rows.Job]:
    """The jobs of these numbers that there are, in their order."""
    by_id = {job.id: job for job in tx.scalars(
        sa.select(models.Job).where(models.Job.id.in_(job_ids)))}  # fmt: skip
    return as_rows(tx, [by_id[job_id] for job_id in job_ids if job_id in by_id])


def projects_of(tx: orm.Session, job_ids: Collection[int]) -> dict[int, str]:
    """The project of each of these jobs that exists."""
    query = sa.select(models.Job.id, models.Job.project).where(models.Job.id.in_(job_ids))
    return {number: project for number, project in tx.execute(query)}


def states_of(tx: orm.Session, job_ids: Collection[int]) -> dict[int, states.State]:
    """The state of each of these jobs that exists."""
    query = sa.select(models.Job.id, models.Job.state).where(models.Job.id.in_(job_ids))
    return {number: states.State(state) for number, state in tx.execute(query)}


def page(
    tx: orm.Session,
    chosen: Filter | None = None,
    limit: int = 50,
    after: int | None = None,
    oldest_first: bool = False,
) -> Page:
    """Jobs by number, newest first; `after` is the last number of the page before."""
    number = models.Job.id
    query = _filtered(sa.select(models.Job), chosen or Filter())
    if after is not None:
        query = query.where(number > after if oldest_first else number < after)
    order = number.asc() if oldest_first else number.desc()
    listed = list(tx.scalars(query.order_by(order).limit(limit + 1)))
    next_after = listed[limit - 1].id if len(listed) > limit else None
    return Page(tuple(as_rows(tx, listed[:limit])), next_after)


def sorted_page(
    tx: orm.Session,
    chosen: Filter,
    sort: Sort,
    descending: bool,
    limit: int,
    after: keyset.Cursor | None = None,
) -> SortedPage:
    """Jobs in the order of `sort`; unknown values come last, equal ones newest first."""
    value = _sorted_by(sort)
    query = _filtered(sa.select(models.Job, value), chosen)
    query = keyset.ordered(query, value, models.Job.id.expression, descending, after)
    listed = tx.execute(query.limit(limit + 1)).all()
    listed_rows = as_rows(tx, [job for job, _ in listed[:limit]])
    if len(listed) <= limit:
        return SortedPage(tuple(listed_rows), None)
    last, last_value = listed[limit - 1]
    return SortedPage(tuple(listed_rows), keyset.Cursor(last_value, last.id))


def counts(tx: orm.Session) -> dict[states.State, int]:
    """How many jobs are in each state."""
    grouped = tx.execute(sa.select(models.Job.state, sa.func.count()).group_by(models.Job.state))
    by_state = {states.State(state): int(count) for state, count in grouped}
    return {state: by_state.get(state, 0) for state in states.State}


def tasks(tx: orm.Session, job_id: int) -> list[rows.Task]:
    """The tasks of a job, in order."""
    query = sa.select(models.Task).where(models.Task.job_id == job_id)
    return [rows.Task.of(task) for task in tx.scalars(query.order_by(models.Task.number))]


def code(tx: orm.Session, job_id: int, number: int) -> tuple[str | None, str | None]:
    """TVMScript and generated source of a task's best schedule; None before the artifact.

    Raises:
        NotFound: there is no such task.
    """
    task_code = tx.execute(
        sa.select(models.Task.schedule, models.Task.source).where(
            models.Task.job_id == job_id, models.Task.number == number
        )
    ).one_or_none()
    if task_code is None:
        raise errors.NotFound(f"job {job_id} has no task {number}")
    return task_code[0], task_code[1]


def assembly(tx: orm.Session, job_id: int, number: int) -> str | None:
    """Assembly (of a GPU PTX) of a task's best schedule; None before the artifact."""
    where = (models.Task.job_id == job_id, models.Task.number == number)
    return tx.scalar(sa.select(models.Task.assembly).where(*where))


def programs(tx: orm.Session, job_id: int) -> list[str]:
    """The tensor programs of a job as `felix.Task.to_json`, in order."""
    query = sa.select(models.Task.program).where(models.Task.job_id == job_id)
    return list(tx.scalars(query.order_by(models.Task.number)))


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
    active = tx.scalar(
        sa.select(sa.func.count())
        .select_from(models.Job)
        .where(models.Job.key_id == key_id, models.Job.state.in_(map(str, states.ACTIVE)))
    )
    if (active or 0) >= quota.max_running_jobs:
        raise errors.QuotaExceeded(
            f"this key has {active} jobs that are not finished, and may have "
            f"{quota.max_running_jobs}: wait, pause or cancel some"
        )
    projects.check_quota(tx, project_of(tx, key_id), trials, n_bytes)


def _sorted_by(sort: Sort) -> sa.ColumnElement[Any]:
    job = models.Job
    owner = sa.select(sa.func.lower(models.Key.name)).where(models.Key.id == job.key_id)
    expressions: dict[Sort, sa.ColumnElement[Any]] = {
        Sort.NUMBER: job.id.expression,
        Sort.NAME: sa.func.lower(job.name),
        Sort.STATE: sa.case(
            *((job.state == str(state), rank) for state, rank in _STATE_RANKS.items())
        ),
        Sort.OWNER: owner.scalar_subquery(),
        Sort.PRIORITY: job.priority.expression,
        Sort.TRIALS: job.n_trials.expression,
        Sort.LATENCY: job.best_us.expression,
        Sort.SPEEDUP: job.unscheduled_us / job.best_us,
    }
    return expressions[sort]


def _filtered(query: sa.Select[Any], chosen: Filter) -> sa.Select[Any]:
    job = models.Job
    if chosen.states:
        query = query.where(job.state.in_([str(state) for state in chosen.states]))
    for column, value in (
        (job.kind, chosen.kind),
        (job.op, chosen.op),
        (job.key_id, chosen.key_id),
        (job.project, chosen.project),
    ):
        if value is not None:
            query = query.where(column == value)
    if chosen.target_key is not None:  # with all devices of that kind
        below = job.target_key.startswith(f"{chosen.target_key}/", autoescape=True)
        query = query.where(sa.or_(job.target_key == chosen.target_key, below))
    if chosen.program is not None:
        task = models.Task
        is_of_program = sa.or_(task.program_key == chosen.program, task.task_key == chosen.program)
        query = query.where(job.id.in_(sa.select(task.job_id).where(is_of_program)))
    for tag in chosen.tags:
        tagged = sa.select(models.JobTag.job_id).where(models.JobTag.tag == tag)
        query = query.where(job.id.in_(tagged))
    if chosen.text:
        query = query.where(
            sa.or_(
                job.name.icontains(chosen.text, autoescape=True),
                job.op.icontains(chosen.text, autoescape=True),
            )
        )
    return query
