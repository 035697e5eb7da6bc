"""Responses of the service as frozen rows: units are in the names, times are aware and in UTC.

Fields that a newer service adds are left out; those that an older one lacks have defaults.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any, TypeVar

from felix import errors

T = TypeVar("T")
Time = datetime.datetime


def of(kind: type[T], content: Any) -> T:
    """The row that a JSON object describes.

    Raises:
        RemoteError: fields are missing: the service is of another version.
    """
    try:
        fields = {
            field.name: _value(field.name, content[field.name])
            for field in dataclasses.fields(kind)  # type: ignore[arg-type]
            if field.name in content or field.default is dataclasses.MISSING
        }
    except (KeyError, TypeError, ValueError) as error:
        raise errors.RemoteError(
            f"the service's response is no {kind.__name__} ({error}): is it of another version?"
        ) from error
    return kind(**fields)


def _value(name: str, value: Any) -> Any:
    is_time = name == "at" or name.endswith("_at") or name == "not_before"
    return Time.fromisoformat(value) if is_time and value is not None else value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What somebody wants tuned, and how far it is; latencies are weighted sums over its tasks."""

    id: int
    name: str
    note: str
    tags: list[str]
    state: str
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
    key_id: int | None
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
    speedup: float | None
    gflops: float | None
    progress: float | None
    elapsed_s: float
    measured_s: float
    breakdown: dict[str, Any] | None
    model: str | None
    reason: str | None
    error: str | None
    message: str | None
    attempts: int
    worker_id: int | None
    last_seq: int
    project: str = "default"
    #: the job whose artifact answered this one at once
    reused_from: int | None = None
    #: tasks whose unscheduled program was faster than every schedule, and ships
    n_unscheduled: int = 0
    #: position, begins_in_s, duration_s, ... of a queued job
    estimate: dict[str, Any] | None = None
    #: name, dtypes, latency_us, call_us, max_error, failure, groups of the network that it builds
    network: dict[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing happens to it by itself any more."""
        return self.state in ("succeeded", "failed", "cancelled")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A tensor program of a job."""

    number: int
    name: str
    weight: float
    flops: float
    min_bytes: float
    n_sketches: int | None
    n_trials: int
    n_failed: int
    n_rounds: int
    best_us: float | None
    best_trial: int | None
    unscheduled_us: float | None
    gflops: float | None
    speedup: float | None
    program_key: str | None = None
    #: the job whose measurements it begins with, and whether they suffice
    reused_from: int | None = None
    settled: bool = False
    ships_unscheduled: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Jobs that one request submitted: `items` have `job_id` and `state`, or a `problem`."""

    id: int
    created_at: Time
    items: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A named request for a job."""

    name: str
    job: dict[str, Any]
    created_at: Time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """When a job would begin and how long it would take; None where nothing is known yet."""

    position: int
    n_tuners: int
    trials_per_s: float | None
    n_recent_jobs: int
    duration_s: float | None
    begins_in_s: float | None
    #: what has to come before any tuner can begin; of services that say so
    waits_for: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measured candidate: a latency or an error class."""

    number: int
    task: int
    round: int
    sketch_index: int
    decisions: list[int]
    latency_us: float | None
    error: str | None
    message: str
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
    #: name, values and text of each decision; None where the names were not stored
    named_decisions: list[dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Best so far after `trial` trials."""

    trial: int
    elapsed_s: float
    measured_s: float
    best_us: float
    share_of_best: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best so far of a job: the trials where it fell, and the last one."""

    job_id: int
    name: str
    state: str
    unscheduled_us: float | None
    points: list[CurvePoint]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    seq: int
    at: Time
    type: str
    payload: dict[str, Any]
    from_state: str | None
    to_state: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file of a job."""

    name: str
    kind: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: Time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that some tuner measures on."""

    name: str
    kind: str
    target_keys: list[str]
    target: dict[str, Any]
    hardware: dict[str, Any]
    model: str | None
    n_tuners_alive: int
    worker_ids: list[int]
    #: place, host, driver, fault, queue, error_rate, clock_ghz, power_w, seen_at, ... of each
    reports: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A tuner process, now or before."""

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
class Key:
    """An API key, without its secret."""

    id: int
    name: str
    public: str
    can_read: bool
    can_submit: bool
    can_admin: bool
    can_priority: bool = False
    can_worker: bool = False
    device_kinds: Sequence[str] = ()
    max_running_jobs: int | None
    max_trials: int | None
    max_upload_bytes: int | None
    created_at: Time
    last_used_at: Time | None
    expires_at: Time | None
    revoked_at: Time | None
    project: str = "default"

    @property
    def scopes(self) -> list[str]:
        """What it may do."""
        has = {
            "read": self.can_read,
            "submit": self.can_submit,
            "priority": self.can_priority,
            "worker": self.can_worker,
            "admin": self.can_admin,
        }
        return [scope for scope, allowed in has.items() if allowed]


@dataclasses.dataclass(frozen=True, slots=True)
class MadeKey:
    """A new key; `text` is shown only now."""

    key: Key
    text: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A team: its keys see its jobs and no others; a limit of None is the service's, or none."""

    name: str
    created_at: Time
    max_running_jobs: int | None
    max_trials: int | None
    max_bytes: int | None
    retention_days: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An address that is told of changes of a project's jobs."""

    id: int
    project: str
    url: str
    states: list[str]
    created_at: Time
    key_id: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class MadeWebhook:
    """A new webhook; `secret`, which signs its notifications, is shown only now."""

    webhook: Webhook
    secret: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notification: `pending` until it is accepted (`delivered`), `dead` if it never was."""

    id: int
    webhook_id: int
    event_id: str
    body: str
    state: str
    attempts: int
    created_at: Time
    delivered_at: Time | None
    last_status: int | None
    last_error: str | None
