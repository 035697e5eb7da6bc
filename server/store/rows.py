"""What the store returns: frozen rows, with the names and units of `server.database.models`."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, TypeVar

from server import states

T = TypeVar("T")
Time = datetime.datetime


def of(kind: type[T], model: object, **given: Any) -> T:
    """The row of a model; fields that the model does not have are given."""
    names = [f.name for f in dataclasses.fields(kind) if f.name not in given]  # type: ignore[arg-type]
    return kind(**{name: getattr(model, name) for name in names}, **given)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key; its secret is known to its user only."""

    id: int
    name: str
    public: str
    can_read: bool
    can_submit: bool
    can_admin: bool
    max_running_jobs: int | None
    max_trials: int | None
    max_upload_bytes: int | None
    created_at: Time
    last_used_at: Time | None
    expires_at: Time | None
    revoked_at: Time | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A dashboard login."""

    key_id: int
    csrf: str
    created_at: Time
    expires_at: Time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job; see `server.database.models.Job` for the fields."""

    id: int
    key_id: int | None
    name: str
    note: str
    tags: tuple[str, ...]
    state: states.State
    priority: int
    kind: str
    op: str
    workload: dict[str, Any]
    target: str
    target_key: str
    resolved_target: str | None
    trials: int | None
    seconds: float | None
    seed: int
    strategy: str
    options: dict[str, Any]
    created_at: Time
    updated_at: Time
    started_at: Time | None
    finished_at: Time | None
    n_tasks: int
    n_trials: int
    n_failed: int
    flops: float
    best_us: float | None
    unscheduled_us: float | None
    elapsed_s: float
    measured_s: float
    breakdown: dict[str, Any] | None
    model: str | None
    reason: str | None
    error: str | None
    message: str | None
    attempts: int
    not_before: Time | None
    lease_expires_at: Time | None
    worker_id: int | None
    last_seq: int

    @property
    def speedup(self) -> float | None:
        """Unscheduled over best, None while one of them is unknown."""
        if self.best_us is None or self.unscheduled_us is None:
            return None
        return self.unscheduled_us / self.best_us

    @property
    def gflops(self) -> float | None:
        """GFLOP/s of the best schedules together."""
        return None if self.best_us is None else self.flops / self.best_us / 1e3

    @property
    def progress(self) -> float | None:
        """Share of the budget that is spent, 0 to 1; None without a budget."""
        if self.state is states.State.SUCCEEDED:
            return 1.0
        shares = []
        if self.trials:
            shares.append(self.n_trials / self.trials)
        if self.seconds:
            shares.append(self.elapsed_s / self.seconds)
        return min(1.0, max(shares)) if shares else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A tensor program of a job."""

    job_id: int
    number: int
    name: str
    weight: float
    flops: float
    min_bytes: float
    task_key: str | None
    n_sketches: int | None
    n_trials: int
    n_failed: int
    n_rounds: int
    best_us: float | None
    best_trial: int | None
    unscheduled_us: float | None
    unscheduled_message: str | None

    @property
    def gflops(self) -> float | None:
        """GFLOP/s of the best schedule."""
        return None if self.best_us is None else self.flops / self.best_us / 1e3

    @property
    def speedup(self) -> float | None:
        """Unscheduled over best, None while one of them is unknown."""
        if self.best_us is None or self.unscheduled_us is None:
            return None
        return self.unscheduled_us / self.best_us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measured candidate; `task` is the task's number."""

    job_id: int
    number: int
    task: int
    round: int
    sketch_index: int
    schedule_hash: str
    decisions: list[int]
    latency_us: float | None
    error: str | None
    message: str
    checked: bool
    spread: float | None
    predicted_us: float | None
    best_us: float | None
    is_best: bool
    elapsed_s: float
    measured_s: float
    build_s: float
    run_s: float
    device: str
    measured_at: Time
    final_us: float | None
    final_error: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class CurvePoint:
    """Best so far after `trial` trials."""

    trial: int
    elapsed_s: float
    measured_s: float
    best_us: float


@dataclasses.dataclass(frozen=True, slots=True)
class Predicted:
    """What the cost model said of a trial, and what was measured."""

    trial: int
    task: int
    round: int
    predicted_us: float
    latency_us: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round of the search; `steps` holds step, temperature, loss and penalty."""

    job_id: int
    task: int
    round: int
    n_candidates: int
    n_invalid: int
    predicted_us: float | None
    elapsed_s: float
    steps: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One fine-tuning of the cost model."""

    job_id: int
    n_records: int
    loss_before: float | None
    loss_after: float | None
    accepted: bool
    at: Time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job."""

    job_id: int
    seq: int
    at: Time
    type: str
    payload: dict[str, Any]
    from_state: str | None
    to_state: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file of a job; its content is in the blob store under `sha256`."""

    id: int
    job_id: int
    name: str
    kind: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: Time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A tuner; `job_id` is what it works on, `is_alive` whether it beat lately."""

    id: int
    name: str
    host: str
    pid: int
    versions: dict[str, Any]
    devices: list[dict[str, Any]]
    started_at: Time
    last_beat_at: Time
    stopped_at: Time | None
    n_trials: int
    n_infrastructure: int
    n_jobs: int
    job_id: int | None
    is_alive: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a key did."""

    id: int
    at: Time
    key_id: int | None
    key_name: str
    action: str
    subject: str
    detail: dict[str, Any]
    remote: str
