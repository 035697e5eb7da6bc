"""The tables, as SQLAlchemy models.

What is filtered, sorted or plotted has a column; JSON only holds what is handed through whole.
Latencies in microseconds, durations in seconds, times are the database's
(`server.database.columns`).
`server.store` returns the frozen rows of `server.store.rows`, never these objects.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import states
from server.database import columns

#: Names of constraints that the models do not name, so that migrations can.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(orm.DeclarativeBase):
    """The metadata of all tables."""

    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's way)
        str: columns.CleanText(),
        datetime.datetime: columns.UtcDateTime(),
        dict[str, Any]: sa.JSON(none_as_null=True),
        list[Any]: sa.JSON(none_as_null=True),
        float: sa.Double(),
        bytes: sa.LargeBinary(),
    }


#: A move as `server.states.pairs` writes it.
_MOVE = "COALESCE(from_state, '') || '>' || COALESCE(to_state, '')"
_NO_MOVE, _FIRST_MOVE = ">", f">{states.State.QUEUED}"

#: SQLite would give the number of a deleted last row to the next one.
_NEVER_REUSED = {"sqlite_autoincrement": True}


def _in(column: str, values: Any) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in sorted(values))})"


def _job(primary_key: bool = False) -> orm.MappedColumn[int]:
    where = sa.ForeignKey("jobs.id", ondelete="CASCADE")
    return orm.mapped_column(where, primary_key=primary_key)


class Key(Base):
    """An API key: a public part to find it by, a hash of the secret, scopes and quotas."""

    __tablename__ = "keys"
    __table_args__ = _NEVER_REUSED

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str]
    public: orm.Mapped[str] = orm.mapped_column(unique=True)
    secret_sha256: orm.Mapped[str]
    can_read: orm.Mapped[bool]
    can_submit: orm.Mapped[bool]
    can_admin: orm.Mapped[bool]
    #: quotas; NULL: the service's
    max_running_jobs: orm.Mapped[int | None]
    max_trials: orm.Mapped[int | None]
    max_upload_bytes: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    created_at: orm.Mapped[datetime.datetime]
    last_used_at: orm.Mapped[datetime.datetime | None]
    expires_at: orm.Mapped[datetime.datetime | None]
    revoked_at: orm.Mapped[datetime.datetime | None]


class Login(Base):
    """A dashboard login; the cookie's value is only kept as a hash."""

    __tablename__ = "logins"

    token_sha256: orm.Mapped[str] = orm.mapped_column(primary_key=True)
    key_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("keys.id", ondelete="CASCADE"))
    csrf: orm.Mapped[str]
    created_at: orm.Mapped[datetime.datetime]
    expires_at: orm.Mapped[datetime.datetime]


class Job(Base):
    """What somebody wants tuned, and how far it is."""

    __tablename__ = "jobs"
    __table_args__ = (
        sa.CheckConstraint(_in("state", states.State), name="state"),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_expires_at IS NULL)", name="lease_whole"
        ),
        sa.CheckConstraint(
            f"lease_token IS NULL OR {_in('state', states.MAY_BE_LEASED)}", name="lease_allowed"
        ),
        sa.CheckConstraint(
            f"lease_token IS NOT NULL OR NOT ({_in('state', states.LEASED)})", name="lease_needed"
        ),
        sa.CheckConstraint(
            f"(finished_at IS NOT NULL) = ({_in('state', states.ENDED)})", name="finished"
        ),
        sa.CheckConstraint("best_us > 0", name="best_us"),
        sa.Index("ix_jobs_claim", "state", "priority", "id"),
        sa.Index("ix_jobs_lease", "lease_expires_at"),
        sa.Index("ix_jobs_key_id_state", "key_id", "state"),
        _NEVER_REUSED,
    )

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    key_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("keys.id", ondelete="SET NULL")
    )
    name: orm.Mapped[str]
    note: orm.Mapped[str] = orm.mapped_column(default="")
    state: orm.Mapped[str] = orm.mapped_column(sa.String(16), default=states.State.QUEUED)
    priority: orm.Mapped[int] = orm.mapped_column(default=0)
    #: operator, onnx or tir; the operator's name or the file's; what was asked, whole
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    op: orm.Mapped[str]
    workload: orm.Mapped[dict[str, Any]]
    #: as the user wrote it; the tuner that begins the job completes both
    target: orm.Mapped[str]
    target_key: orm.Mapped[str]
    resolved_target: orm.Mapped[str | None]
    trials: orm.Mapped[int | None]
    seconds: orm.Mapped[float | None]
    seed: orm.Mapped[int]
    strategy: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    #: round_size, patience_rounds, ...
    options: orm.Mapped[dict[str, Any]]

    created_at: orm.Mapped[datetime.datetime]
    updated_at: orm.Mapped[datetime.datetime]
    started_at: orm.Mapped[datetime.datetime | None]
    finished_at: orm.Mapped[datetime.datetime | None]

    n_tasks: orm.Mapped[int]
    n_trials: orm.Mapped[int] = orm.mapped_column(default=0)
    n_failed: orm.Mapped[int] = orm.mapped_column(default=0)
    flops: orm.Mapped[float]
    #: weighted sums over the tasks; NULL while a task has none
    best_us: orm.Mapped[float | None]
    unscheduled_us: orm.Mapped[float | None]
    elapsed_s: orm.Mapped[float] = orm.mapped_column(default=0.0)
    #: seconds that kernels ran
    measured_s: orm.Mapped[float] = orm.mapped_column(default=0.0)
    #: where the time went, by part
    breakdown: orm.Mapped[dict[str, Any] | None]
    model: orm.Mapped[str | None]

    #: why it ended: trials, seconds, converged, exhausted, stopped, ...
    reason: orm.Mapped[str | None]
    error: orm.Mapped[str | None]
    message: orm.Mapped[str | None]

    #: claims since the last trial
    attempts: orm.Mapped[int] = orm.mapped_column(default=0)
    not_before: orm.Mapped[datetime.datetime | None]
    lease_token: orm.Mapped[str | None]
    lease_expires_at: orm.Mapped[datetime.datetime | None]
    worker_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("workers.id", ondelete="SET NULL")
    )
    last_seq: orm.Mapped[int] = orm.mapped_column(default=0)


class JobTag(Base):
    """A tag of a job."""

    __tablename__ = "job_tags"
    __table_args__ = (sa.Index("ix_job_tags_tag", "tag", "job_id"),)

    job_id: orm.Mapped[int] = _job(primary_key=True)
    tag: orm.Mapped[str] = orm.mapped_column(primary_key=True)


class Idempotency(Base):
    """What a client's `Idempotency-Key` made."""

    __tablename__ = "idempotency"

    key_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("keys.id", ondelete="CASCADE"), primary_key=True
    )
    idempotency_key: orm.Mapped[str] = orm.mapped_column(primary_key=True)
    request_sha256: orm.Mapped[str]
    job_id: orm.Mapped[int] = _job()
    created_at: orm.Mapped[datetime.datetime]


class Task(Base):
    """A tensor program of a job."""

    __tablename__ = "tasks"

    job_id: orm.Mapped[int] = _job(primary_key=True)
    number: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str]
    weight: orm.Mapped[float]
    flops: orm.Mapped[float]
    min_bytes: orm.Mapped[float]
    #: `felix.Task.to_json`
    program: orm.Mapped[str] = orm.mapped_column(deferred=True)
    #: `felix.Task.key` for the resolved target
    task_key: orm.Mapped[str | None]
    n_sketches: orm.Mapped[int | None]
    n_trials: orm.Mapped[int] = orm.mapped_column(default=0)
    n_failed: orm.Mapped[int] = orm.mapped_column(default=0)
    n_rounds: orm.Mapped[int] = orm.mapped_column(default=0)
    best_us: orm.Mapped[float | None]
    best_trial: orm.Mapped[int | None]
    unscheduled_us: orm.Mapped[float | None]
    unscheduled_message: orm.Mapped[str | None]
    #: TVMScript of the best schedule, once the artifact is made
    schedule: orm.Mapped[str | None] = orm.mapped_column(deferred=True)
    #: generated code: LLVM IR or CUDA
    source: orm.Mapped[str | None] = orm.mapped_column(deferred=True)


class Trial(Base):
    """One measured candidate: a latency or an error class, written once."""

    __tablename__ = "trials"
    __table_args__ = (
        sa.UniqueConstraint("job_id", "task", "schedule_hash"),
        sa.CheckConstraint("(latency_us IS NULL) <> (error IS NULL)", name="outcome"),
        sa.CheckConstraint("latency_us > 0", name="latency_us"),
        sa.Index(
            "ix_trials_curve",
            "job_id",
            "number",
            sqlite_where=sa.text("curve_us IS NOT NULL"),
            postgresql_where=sa.text("curve_us IS NOT NULL"),
        ),
        sa.Index("ix_trials_task", "job_id", "task", "number"),
    )

    job_id: orm.Mapped[int] = _job(primary_key=True)
    #: 1, 2, ... over the job, in the order of writing
    number: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    task: orm.Mapped[int]
    round: orm.Mapped[int]
    sketch_index: orm.Mapped[int]
    schedule_hash: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    decisions: orm.Mapped[list[Any]]
    latency_us: orm.Mapped[float | None]
    error: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    message: orm.Mapped[str]
    #: whether the output agreed with the reference
    checked: orm.Mapped[bool]
    spread: orm.Mapped[float | None]
    predicted_us: orm.Mapped[float | None]
    #: the task's best so far, this one included
    best_us: orm.Mapped[float | None]
    is_best: orm.Mapped[bool]
    #: the job's weighted best, where this trial lowered it
    curve_us: orm.Mapped[float | None]
    #: of tuning, pauses left out
    elapsed_s: orm.Mapped[float]
    #: seconds that kernels of the job had run by then
    measured_s: orm.Mapped[float]
    build_s: orm.Mapped[float]
    run_s: orm.Mapped[float]
    device: orm.Mapped[str]
    measured_at: orm.Mapped[datetime.datetime]
    #: the line of `felix.records`, from which a run goes on
    record: orm.Mapped[str] = orm.mapped_column(deferred=True)
    #: the longer measurement at the end of the run, for the fastest few; it then counts alone
    final_us: orm.Mapped[float | None]
    final_error: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    final_record: orm.Mapped[str | None] = orm.mapped_column(deferred=True)


class Round(Base):
    """A round of the search: what it chose, how the descent went, what the model learnt."""

    __tablename__ = "rounds"

    job_id: orm.Mapped[int] = _job(primary_key=True)
    task: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    round: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    n_candidates: orm.Mapped[int]
    n_invalid: orm.Mapped[int]
    predicted_us: orm.Mapped[float | None]
    elapsed_s: orm.Mapped[float]
    #: [{step, temperature, loss, penalty, ...}], in the order of steps
    steps: orm.Mapped[list[Any]]


class Training(Base):
    """One fine-tuning of the cost model."""

    __tablename__ = "trainings"

    job_id: orm.Mapped[int] = _job(primary_key=True)
    n_records: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    loss_before: orm.Mapped[float | None]
    loss_after: orm.Mapped[float | None]
    accepted: orm.Mapped[bool]
    at: orm.Mapped[datetime.datetime]


class Event(Base):
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    __tablename__ = "events"
    __table_args__ = (
        sa.CheckConstraint(
            _in(_MOVE, [_NO_MOVE, _FIRST_MOVE, *states.pairs()]),
            name="move",
        ),
    )

    job_id: orm.Mapped[int] = _job(primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    at: orm.Mapped[datetime.datetime]
    type: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    payload: orm.Mapped[dict[str, Any]]
    from_state: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    to_state: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))


class Checkpoint(Base):
    """Where the search of a job stands; the last one of each job."""

    __tablename__ = "checkpoints"

    job_id: orm.Mapped[int] = _job(primary_key=True)
    #: trials that the state knows
    n_records: orm.Mapped[int]
    at: orm.Mapped[datetime.datetime]
    #: zlib of JSON
    state: orm.Mapped[bytes]
    #: safetensors of the cost model
    tensors: orm.Mapped[bytes | None]


class Artifact(Base):
    """A file of a job in the blob store; the blob is written before the row."""

    __tablename__ = "artifacts"
    __table_args__ = (sa.UniqueConstraint("job_id", "name"), _NEVER_REUSED)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    job_id: orm.Mapped[int] = _job()
    name: orm.Mapped[str]
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    media_type: orm.Mapped[str]
    sha256: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    size_bytes: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    created_at: orm.Mapped[datetime.datetime]


class Worker(Base):
    """A tuner process, now or before."""

    __tablename__ = "workers"
    __table_args__ = _NEVER_REUSED

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str]
    host: orm.Mapped[str]
    pid: orm.Mapped[int]
    versions: orm.Mapped[dict[str, Any]]
    #: [{name, kind, target_key, target, hardware, model}]
    devices: orm.Mapped[list[Any]]
    started_at: orm.Mapped[datetime.datetime]
    last_beat_at: orm.Mapped[datetime.datetime]
    stopped_at: orm.Mapped[datetime.datetime | None]
    #: trials measured and, of those, failed for infrastructure
    n_trials: orm.Mapped[int] = orm.mapped_column(default=0)
    n_infrastructure: orm.Mapped[int] = orm.mapped_column(default=0)
    n_jobs: orm.Mapped[int] = orm.mapped_column(default=0)


class Audit(Base):
    """What keys did to jobs, keys and logins; no secret is ever part of it."""

    __tablename__ = "audit"
    __table_args__ = (sa.Index("ix_audit_key_id", "key_id", "id"), _NEVER_REUSED)

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    at: orm.Mapped[datetime.datetime]
    #: kept when the key is gone
    key_id: orm.Mapped[int | None]
    key_name: orm.Mapped[str]
    action: orm.Mapped[str]
    subject: orm.Mapped[str]
    detail: orm.Mapped[dict[str, Any]]
    remote: orm.Mapped[str]
