"""The fields of what the store returns, declared once: types, units, meaning.

`server.database.models` makes table columns of them, `server.store.rows` frozen copies of rows.
What is filtered, sorted or plotted has a column; JSON is for what is passed through whole.
Latencies in microseconds, durations in seconds, times are the database's
(`server.database.columns`).
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import states

#: The project of keys and jobs that name none.
DEFAULT_PROJECT = "default"


def _values(kind: type[states.State]) -> list[str]:
    return [each.value for each in kind]


def owned_by_project() -> orm.MappedColumn[str]:
    """The column of what belongs to a project; projects are named for good, and never removed."""
    return orm.mapped_column(server_default=DEFAULT_PROJECT)


def owned_by_job(primary_key: bool = False) -> orm.MappedColumn[int]:
    """The column of what belongs to a job and is deleted with it."""
    where = sa.ForeignKey("jobs.id", ondelete="CASCADE")
    return orm.mapped_column(where, primary_key=primary_key)


class Project:
    """A team: its keys see its jobs and no others; NULL limits are the service's, or none."""

    name: orm.Mapped[str] = orm.mapped_column(primary_key=True)
    created_at: orm.Mapped[datetime.datetime]
    #: jobs of all its keys that are not finished
    max_running_jobs: orm.Mapped[int | None]
    #: of one job
    max_trials: orm.Mapped[int | None]
    #: of its files in the blob store, each content counted once
    max_bytes: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    #: files of jobs that ended so long ago are removed
    retention_days: orm.Mapped[int | None]


class Key:
    """An API key: a public part to find it by, a hash of the secret, scopes and quotas."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    project: orm.Mapped[str] = owned_by_project()
    name: orm.Mapped[str]
    public: orm.Mapped[str] = orm.mapped_column(unique=True)
    can_read: orm.Mapped[bool]
    can_submit: orm.Mapped[bool]
    can_admin: orm.Mapped[bool]
    #: may ask for more than the default priority
    can_priority: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: nodes of a cluster that state it measure for the service, on devices of these kinds
    can_worker: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    device_kinds: orm.Mapped[list[Any]] = orm.mapped_column(
        default=list, server_default=sa.text("'[]'")
    )
    #: quotas; NULL: the service's
    max_running_jobs: orm.Mapped[int | None]
    max_trials: orm.Mapped[int | None]
    max_upload_bytes: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    created_at: orm.Mapped[datetime.datetime]
    last_used_at: orm.Mapped[datetime.datetime | None]
    expires_at: orm.Mapped[datetime.datetime | None]
    revoked_at: orm.Mapped[datetime.datetime | None]


class Login:
    """A dashboard login; the cookie's value is only stored as a hash."""

    key_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("keys.id", ondelete="CASCADE"))
    csrf: orm.Mapped[str]
    created_at: orm.Mapped[datetime.datetime]
    expires_at: orm.Mapped[datetime.datetime]


#: As `felix.tuning.results.TIE`: within this share two programs count as equally fast.
TIE = 0.03


class Tuned:
    """How fast a task is, or a job: weighted sums over its tasks, NULL while one has none."""

    flops: orm.Mapped[float]
    best_us: orm.Mapped[float | None]
    unscheduled_us: orm.Mapped[float | None]

    @property
    def speedup(self) -> float | None:
        """Unscheduled over best, 1 for a tie; None while one of them is unknown."""
        if self.best_us is None or self.unscheduled_us is None:
            return None
        ratio = self.unscheduled_us / self.best_us
        return max(1.0, ratio) if ratio * (1.0 + TIE) >= 1.0 else ratio

    @property
    def gflops(self) -> float | None:
        """GFLOP/s of the best schedules."""
        return None if self.best_us is None else self.flops / self.best_us / 1e3


class Job(Tuned):
    """What a user wants tuned, and how far it is."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    project: orm.Mapped[str] = owned_by_project()
    key_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("keys.id", ondelete="SET NULL")
    )
    name: orm.Mapped[str]
    note: orm.Mapped[str] = orm.mapped_column(default="")
    state: orm.Mapped[states.State] = orm.mapped_column(
        sa.Enum(states.State, native_enum=False, length=16, values_callable=_values),
        default=states.State.QUEUED,
    )
    priority: orm.Mapped[int] = orm.mapped_column(default=0)
    #: operator, onnx or tir; the operator's name or the file's; the submitted workload, whole
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
    lease_expires_at: orm.Mapped[datetime.datetime | None]
    worker_id: orm.Mapped[int | None] = orm.mapped_column(
        sa.ForeignKey("workers.id", ondelete="SET NULL")
    )
    last_seq: orm.Mapped[int] = orm.mapped_column(default=0)

    #: the job whose artifact answered this one at once; stays when that job is deleted
    reused_from: orm.Mapped[int | None]
    #: software that measured; {}: several versions did
    versions: orm.Mapped[dict[str, Any] | None]
    #: tasks whose unscheduled program was faster than every schedule, and ships
    n_unscheduled: orm.Mapped[int] = orm.mapped_column(default=0, server_default="0")


class Task(Tuned):
    """A tensor program of a job."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
    number: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str]
    weight: orm.Mapped[float]
    min_bytes: orm.Mapped[float]
    #: `felix.Task.key` for the resolved target
    task_key: orm.Mapped[str | None]
    n_sketches: orm.Mapped[int | None]
    #: by number of a sketch what its decisions are: [[label, how many decisions], ...]
    decisions: orm.Mapped[dict[str, Any] | None]
    n_trials: orm.Mapped[int] = orm.mapped_column(default=0)
    n_failed: orm.Mapped[int] = orm.mapped_column(default=0)
    n_rounds: orm.Mapped[int] = orm.mapped_column(default=0)
    best_trial: orm.Mapped[int | None]
    unscheduled_message: orm.Mapped[str | None]
    #: `felix.Task.program_key`: of the program alone, without the target
    program_key: orm.Mapped[str | None]
    #: the job whose measurements this task begins with; stays when that job is deleted
    reused_from: orm.Mapped[int | None]
    #: whether those suffice: the task gets no trials of its own
    settled: orm.Mapped[bool] = orm.mapped_column(default=False, server_default=sa.false())
    #: whether the unscheduled program was faster than every schedule, and ships
    ships_unscheduled: orm.Mapped[bool] = orm.mapped_column(
        default=False, server_default=sa.false()
    )


class Trial:
    """One measured candidate: a latency or an error class, written once."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
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
    #: of tuning, pauses left out
    elapsed_s: orm.Mapped[float]
    #: seconds that kernels of the job had run by then
    measured_s: orm.Mapped[float]
    build_s: orm.Mapped[float]
    run_s: orm.Mapped[float]
    device: orm.Mapped[str]
    measured_at: orm.Mapped[datetime.datetime]
    #: the longer measurement at the end of the run, for the fastest few; it then counts alone
    final_us: orm.Mapped[float | None]
    final_error: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))


class Round:
    """A round of the search: what it chose, how the descent went, what the model learnt."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
    task: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    round: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    n_candidates: orm.Mapped[int]
    n_invalid: orm.Mapped[int]
    predicted_us: orm.Mapped[float | None]
    elapsed_s: orm.Mapped[float]
    #: [{step, temperature, loss, penalty, ...}], in the order of steps
    steps: orm.Mapped[list[Any]]


class Training:
    """One fine-tuning of the cost model."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
    n_records: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    loss_before: orm.Mapped[float | None]
    loss_after: orm.Mapped[float | None]
    accepted: orm.Mapped[bool]
    at: orm.Mapped[datetime.datetime]


class Event:
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
    seq: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    at: orm.Mapped[datetime.datetime]
    type: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    payload: orm.Mapped[dict[str, Any]]
    from_state: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    to_state: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))


class Network:
    """The network that a job puts together."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
    name: orm.Mapped[str]
    #: fields of `server.store.networks.Group`
    groups: orm.Mapped[list[Any]]
    #: a whole call by wall clock; NULL before it was timed, which needs the device
    call_us: orm.Mapped[float | None]
    #: largest relative difference from what ONNX Runtime computes, or its untuned build
    max_error: orm.Mapped[float | None]
    #: why it was not built
    failure: orm.Mapped[str | None]


class Artifact:
    """A file of a job in the blob store; the blob is written before the row."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    job_id: orm.Mapped[int] = owned_by_job()
    name: orm.Mapped[str]
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    media_type: orm.Mapped[str]
    sha256: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    size_bytes: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    created_at: orm.Mapped[datetime.datetime]


class Template:
    """A named request for a job, to be submitted with changes."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    key_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("keys.id", ondelete="CASCADE"))
    name: orm.Mapped[str]
    #: the body of `POST /v1/jobs`
    job: orm.Mapped[dict[str, Any]]
    created_at: orm.Mapped[datetime.datetime]


class Batch:
    """Jobs that one request submitted."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    key_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("keys.id", ondelete="CASCADE"))
    #: [{job_id} or {status, title, detail}], in the order of the request
    items: orm.Mapped[list[Any]]
    created_at: orm.Mapped[datetime.datetime]


class ImportedSchedule:
    """A schedule of an imported database: how its trace reads, and the latency it came with."""

    job_id: orm.Mapped[int] = owned_by_job(primary_key=True)
    task: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    #: 1, 2, ... within the task, the fastest first
    number: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    #: the trace's text without its decisions, and the texts of these
    signature: orm.Mapped[str]
    decisions: orm.Mapped[list[Any]]
    latency_us: orm.Mapped[float]


class Worker:
    """A tuner process, now or before."""

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


class DeviceReport:
    """A device as its tuner last saw it; counts are of the last hour."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    worker_id: orm.Mapped[int]
    #: its name, which no other device of its tuner has
    place: orm.Mapped[str]
    host: orm.Mapped[str]
    target_key: orm.Mapped[str]
    driver: orm.Mapped[str | None]
    versions: orm.Mapped[dict[str, Any]]
    #: why it measures nothing
    fault: orm.Mapped[str | None]
    #: candidates that wait for it
    queue: orm.Mapped[int]
    n_measured: orm.Mapped[int]
    n_failed: orm.Mapped[int]
    clock_ghz: orm.Mapped[float | None]
    power_w: orm.Mapped[float | None]
    seen_at: orm.Mapped[datetime.datetime]


class Webhook:
    """An address that is told of changes of a project's jobs."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    project: orm.Mapped[str] = owned_by_project()
    url: orm.Mapped[str]
    #: states that are reported
    states: orm.Mapped[list[Any]]
    created_at: orm.Mapped[datetime.datetime]
    #: the key that made it; stays when the key is deleted
    key_id: orm.Mapped[int | None]


class Delivery:
    """One notification for one webhook: sent until it is accepted."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    webhook_id: orm.Mapped[int] = orm.mapped_column(
        sa.ForeignKey("webhooks.id", ondelete="CASCADE")
    )
    project: orm.Mapped[str] = owned_by_project()
    #: the same for all tries
    event_id: orm.Mapped[str]
    body: orm.Mapped[str]
    #: pending, delivered or dead
    state: orm.Mapped[str] = orm.mapped_column(sa.String(16), default="pending")
    attempts: orm.Mapped[int] = orm.mapped_column(default=0)
    created_at: orm.Mapped[datetime.datetime]
    #: earliest time of the next try
    not_before: orm.Mapped[datetime.datetime]
    delivered_at: orm.Mapped[datetime.datetime | None]
    #: of the last try: the HTTP status, or why there is none
    last_status: orm.Mapped[int | None]
    last_error: orm.Mapped[str | None]


class Audit:
    """What keys did to jobs, keys and logins; no secret is ever part of it."""

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    at: orm.Mapped[datetime.datetime]
    project: orm.Mapped[str] = owned_by_project()
    #: stays when the key is deleted
    key_id: orm.Mapped[int | None]
    key_name: orm.Mapped[str]
    action: orm.Mapped[str]
    subject: orm.Mapped[str]
    detail: orm.Mapped[dict[str, Any]]
    remote: orm.Mapped[str]
