"""The tables, as SQLAlchemy models: keys, constraints, indexes and internal columns.

Columns that the store returns are declared in `server.database.fields`; `server.store` returns
frozen copies of them (`server.store.rows`), never these objects.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import states
from server.database import columns, fields

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


class Project(fields.Project, Base):
    """A team: its keys see its jobs and no others."""

    __tablename__ = "projects"


class Key(fields.Key, Base):
    """An API key: a public part to find it by, a hash of the secret, scopes and quotas."""

    __tablename__ = "keys"
    __table_args__ = _NEVER_REUSED

    secret_sha256: orm.Mapped[str]
    #: seconds of tuners that the key's jobs had lately, as of a time: `server.store.turns`
    tuner_s: orm.Mapped[float] = orm.mapped_column(default=0.0, server_default=sa.text("0"))
    tuner_s_at: orm.Mapped[datetime.datetime | None]


class Login(fields.Login, Base):
    """A dashboard login; the cookie's value is only stored as a hash."""

    __tablename__ = "logins"

    token_sha256: orm.Mapped[str] = orm.mapped_column(primary_key=True)


class Job(fields.Job, Base):
    """What a user wants tuned, and how far it is."""

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
        sa.Index("ix_jobs_project", "project", "id"),
        _NEVER_REUSED,
    )

    lease_token: orm.Mapped[str | None]


class JobTag(Base):
    """A tag of a job."""

    __tablename__ = "job_tags"
    __table_args__ = (sa.Index("ix_job_tags_tag", "tag", "job_id"),)

    job_id: orm.Mapped[int] = fields.owned_by_job(primary_key=True)
    tag: orm.Mapped[str] = orm.mapped_column(primary_key=True)


class Idempotency(Base):
    """What a client's `Idempotency-Key` made."""

    __tablename__ = "idempotency"

    key_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("keys.id", ondelete="CASCADE"), primary_key=True
    )
    idempotency_key: orm.Mapped[str] = orm.mapped_column(primary_key=True)
    request_sha256: orm.Mapped[str]
    job_id: orm.Mapped[int] = fields.owned_by_job()
    created_at: orm.Mapped[datetime.datetime]


class Task(fields.Task, Base):
    """A tensor program of a job."""

    __tablename__ = "tasks"
    __table_args__ = (
        sa.Index("ix_tasks_program_key", "program_key"),
        sa.Index("ix_tasks_family", "family"),
    )

    #: `felix.database.outcome.family`: of the operator, whatever its extents
    family: orm.Mapped[str | None]
    #: `felix.Task.to_json`
    program: orm.Mapped[str] = orm.mapped_column(deferred=True)
    #: TVMScript of the best schedule, once the artifact is made
    schedule: orm.Mapped[str | None] = orm.mapped_column(deferred=True)
    #: generated code: LLVM IR or CUDA
    source: orm.Mapped[str | None] = orm.mapped_column(deferred=True)
    #: the CPU's instructions, or the PTX of a GPU
    assembly: orm.Mapped[str | None] = orm.mapped_column(deferred=True)


class Trial(fields.Trial, Base):
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

    #: the job's weighted best, where this trial lowered it
    curve_us: orm.Mapped[float | None]
    #: the line of `felix.database.records`, from which a run goes on
    record: orm.Mapped[str] = orm.mapped_column(deferred=True)
    final_record: orm.Mapped[str | None] = orm.mapped_column(deferred=True)


class Round(fields.Round, Base):
    """A round of the search: what it chose, how the descent went, what the model learnt."""

    __tablename__ = "rounds"


class Training(fields.Training, Base):
    """One fine-tuning of the cost model."""

    __tablename__ = "trainings"


class Event(fields.Event, Base):
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    __tablename__ = "events"
    __table_args__ = (
        sa.CheckConstraint(_in(_MOVE, [_NO_MOVE, _FIRST_MOVE, *states.pairs()]), name="move"),
    )


class Checkpoint(Base):
    """The state of a job's search after its last round."""

    __tablename__ = "checkpoints"

    job_id: orm.Mapped[int] = fields.owned_by_job(primary_key=True)
    #: trials that the state knows
    n_records: orm.Mapped[int]
    at: orm.Mapped[datetime.datetime]
    #: zlib of JSON
    state: orm.Mapped[bytes]
    #: safetensors of the cost model
    tensors: orm.Mapped[bytes | None]


class Network(fields.Network, Base):
    """The network that a job puts together: an ONNX file with the best program of each group."""

    __tablename__ = "networks"


class Artifact(fields.Artifact, Base):
    """A file of a job in the blob store; the blob is written before the row."""

    __tablename__ = "artifacts"
    __table_args__ = (
        sa.UniqueConstraint("job_id", "name"),
        sa.Index("ix_artifacts_sha256", "sha256"),
        _NEVER_REUSED,
    )


class Template(fields.Template, Base):
    """A named request for a job, to be submitted with changes."""

    __tablename__ = "templates"
    __table_args__ = (sa.UniqueConstraint("key_id", "name"), _NEVER_REUSED)


class Batch(fields.Batch, Base):
    """Jobs that one request submitted."""

    __tablename__ = "batches"
    __table_args__ = (sa.UniqueConstraint("key_id", "idempotency_key"), _NEVER_REUSED)

    idempotency_key: orm.Mapped[str | None]
    request_sha256: orm.Mapped[str]


class ImportedSchedule(fields.ImportedSchedule, Base):
    """A schedule of an imported database: how its trace reads, and the latency it came with."""

    __tablename__ = "imported_schedules"


class Worker(fields.Worker, Base):
    """A tuner process, now or before."""

    __tablename__ = "workers"
    __table_args__ = _NEVER_REUSED


class DeviceReport(fields.DeviceReport, Base):
    """A device as its tuner last saw it."""

    __tablename__ = "device_reports"
    __table_args__ = (sa.UniqueConstraint("worker_id", "place"),)

    worker_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("workers.id", ondelete="CASCADE"))


class Webhook(fields.Webhook, Base):
    """An address that is told of changes of a project's jobs."""

    __tablename__ = "webhooks"
    __table_args__ = (sa.Index("ix_webhooks_project", "project", "id"), _NEVER_REUSED)

    #: what signs its notifications
    secret: orm.Mapped[str]


class Delivery(fields.Delivery, Base):
    """One notification for one webhook: sent until it is accepted."""

    __tablename__ = "deliveries"
    __table_args__ = (
        sa.CheckConstraint(_in("state", ("pending", "delivered", "dead")), name="state"),
        sa.Index("ix_deliveries_due", "state", "not_before"),
        sa.Index("ix_deliveries_webhook_id", "webhook_id", "id"),
        _NEVER_REUSED,
    )

    #: a sender has it until then
    leased_until: orm.Mapped[datetime.datetime | None]


class Audit(fields.Audit, Base):
    """What keys did to jobs, keys and logins; no secret is ever part of it."""

    __tablename__ = "audit"
    __table_args__ = (sa.Index("ix_audit_key_id", "key_id", "id"), _NEVER_REUSED)
