"""Responses of the service as frozen rows: units are in the names, times are aware and in UTC.

The service's own bodies of responses inherit from these rows, so that a field is declared once.
Fields that a newer service adds are left out; those that an older one lacks have defaults.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from felix import errors

T = TypeVar("T")
Time = datetime.datetime

#: What keys may do: a key has `can_` before each.
SCOPES = ("read", "submit", "priority", "worker", "admin")


@dataclasses.dataclass(frozen=True, slots=True)
class Doc:
    """What a field means, for readers and for the OpenAPI document of the service."""

    description: str = ""
    examples: Sequence[Any] = ()

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """The JSON schema of the field, as pydantic asks for it."""
        schema: dict[str, Any] = handler(core_schema)
        if self.description:
            schema["description"] = self.description
        if self.examples:
            schema["examples"] = list(self.examples)
        return schema


def _older(value: T) -> T:
    """A field that a service always has; of one that is too old to have it, this value."""
    return dataclasses.field(default_factory=lambda: value)


def of(kind: type[T], content: Any) -> T:
    """The row that a JSON object describes.

    Raises:
        RemoteError: fields are missing: the service is of another version.
    """
    try:
        fields = {
            field.name: _value(field.name, content[field.name])
            for field in dataclasses.fields(kind)  # type: ignore[arg-type]
            if field.name in content
            or field.default is field.default_factory is dataclasses.MISSING
        }
    except (KeyError, TypeError, ValueError) as error:
        raise errors.RemoteError(
            f"the service's response is no {kind.__name__} ({error}): is it of another version?"
        ) from error
    return kind(**fields)


def _value(name: str, value: Any) -> Any:
    is_time = name == "at" or name.endswith("_at") or name == "not_before"
    return Time.fromisoformat(value) if is_time and value is not None else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What somebody wants tuned, and how far it is; latencies are weighted sums over its tasks."""

    id: Annotated[int, Doc(examples=[7])]
    name: Annotated[str, Doc(examples=["gemm 512"])]
    note: str
    tags: Annotated[list[str], Doc(examples=[["nightly"]])]
    state: str
    priority: int
    kind: Annotated[str, Doc("operator, onnx or tir", examples=["operator"])]
    op: Annotated[str, Doc("operator or file name", examples=["gemm"])]
    workload: Annotated[
        dict[str, Any],
        Doc(
            "the submitted workload, whole", examples=[{"params": {"m": 512, "n": 512, "k": 512}}]
        ),
    ]
    target: Annotated[str, Doc(examples=["llvm"])]
    target_key: Annotated[str, Doc("which devices can measure it")]
    resolved_target: Annotated[str | None, Doc("the target of the device, as JSON")]
    trials: Annotated[int | None, Doc("budget", examples=[256])]
    seconds: Annotated[float | None, Doc("budget of the run and its artifacts, without the queue")]
    seed: int
    strategy: Annotated[str, Doc(examples=["gradient"])]
    options: dict[str, Any]
    key_id: Annotated[int | None, Doc("the key that made it")]
    created_at: Time
    updated_at: Time
    started_at: Time | None
    finished_at: Time | None
    n_tasks: int
    n_trials: Annotated[int, Doc(examples=[96])]
    n_failed: int
    flops: Annotated[float, Doc("float operations of one run, weights included")]
    best_us: Annotated[
        float | None,
        Doc(
            "weighted sum of the tasks' best latencies; null while one has none", examples=[512.3]
        ),
    ]
    unscheduled_us: float | None
    speedup: Annotated[float | None, Doc("unscheduled over best", examples=[41.7])]
    gflops: Annotated[float | None, Doc("GFLOP/s of the best", examples=[524.0])]
    progress: Annotated[float | None, Doc("share of the budget spent, 0 to 1")]
    elapsed_s: Annotated[float, Doc("tuning time, pauses left out")]
    measured_s: Annotated[float, Doc("seconds that kernels ran")]
    breakdown: Annotated[dict[str, Any] | None, Doc("where the time went, seconds")]
    model: Annotated[str | None, Doc("the cost model it began with")]
    reason: Annotated[str | None, Doc("why it ended")]
    error: str | None
    message: str | None
    attempts: int
    worker_id: int | None
    last_seq: Annotated[int, Doc("sequence number of its newest event")]
    project: Annotated[str, Doc("whose it is", examples=["default"])] = _older("default")
    reused_from: Annotated[int | None, Doc("the job whose artifact answered this one at once")] = (
        None
    )
    n_unscheduled: Annotated[int, Doc("tasks whose unscheduled program was faster, and ships")] = 0
    #: position, begins_in_s, duration_s, ... of a queued job
    estimate: dict[str, Any] | None = None
    #: name, dtypes, latency_us, call_us, max_error, failure, groups of the network that it builds
    network: dict[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing happens to it by itself any more."""
        return self.state in ("succeeded", "failed", "cancelled")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A tensor program of a job."""

    number: int
    name: str
    weight: Annotated[float, Doc("how often the workload runs it")]
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
    program_key: Annotated[str | None, Doc("of the program alone")] = _older(None)
    reused_from: Annotated[int | None, Doc("the job whose measurements it begins with")] = _older(
        None
    )
    settled: Annotated[bool, Doc("those suffice: it gets no trials of its own")] = _older(False)
    ships_unscheduled: Annotated[
        bool, Doc("the unscheduled program was faster than every schedule; it is what ships")
    ] = _older(False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Jobs that one request submitted: `items` have `job_id` and `state`, or a `problem`."""

    id: int
    created_at: Time
    items: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """A named request for a job."""

    name: Annotated[str, Doc(examples=["nightly"])]
    job: Annotated[dict[str, Any], Doc("the body of `POST /v1/jobs`")]
    created_at: Time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """When a job would begin and how long it would take; None where nothing is known yet."""

    position: Annotated[int, Doc("place in the queue; 1 is next")]
    n_tuners: Annotated[int, Doc("tuners alive that can measure it")]
    trials_per_s: Annotated[
        float | None,
        Doc("trials over tuning seconds of recent jobs on such devices; null: none yet"),
    ]
    n_recent_jobs: Annotated[int, Doc("jobs that the rate is taken from")]
    duration_s: Annotated[float | None, Doc("tuning seconds of the job")]
    begins_in_s: Annotated[
        float | None, Doc("what runs and what is ahead, shared by the tuners; null: unknown")
    ]
    waits_for: Annotated[
        str | None,
        Doc("what has to come before any tuner can begin, like a device; null: nothing"),
    ] = _older(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One measured candidate: a latency or an error class."""

    number: int
    task: int
    round: int
    sketch_index: int
    decisions: list[int]
    latency_us: float | None
    error: Annotated[str | None, Doc("build, launch, timeout, wrong_result or infrastructure")]
    message: str
    spread: Annotated[float | None, Doc("relative spread of the repeats")]
    predicted_us: float | None
    best_us: Annotated[float | None, Doc("the task's best so far")]
    is_best: bool
    elapsed_s: float
    measured_s: float
    build_s: float
    run_s: float
    device: str
    measured_at: Time
    #: name, values and text of each decision; None where the names were not stored
    named_decisions: list[dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Best so far after `trial` trials."""

    trial: int
    elapsed_s: float
    measured_s: float
    best_us: float
    share_of_best: Annotated[
        float, Doc("the curve's last latency over this one: 1 is where it stands now")
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Best so far of a job: the trials where it fell, and the last one."""

    job_id: int
    name: str
    state: str
    unscheduled_us: float | None
    points: list[CurvePoint]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    seq: int
    at: Time
    type: Annotated[str, Doc(examples=["trial"])]
    payload: dict[str, Any]
    from_state: str | None
    to_state: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file of a job."""

    name: Annotated[str, Doc(examples=["gemm-512.zip"])]
    kind: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: Time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device that some tuner measures on."""

    name: str
    kind: str
    target_keys: list[str]
    target: dict[str, Any]
    hardware: dict[str, Any]
    model: Annotated[str | None, Doc("pretrained, or null for the analytic one")]
    n_tuners_alive: int
    worker_ids: list[int]
    #: place, host, driver, fault, queue, error_rate, clock_ghz, power_w, seen_at, ... of each
    reports: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
    """A tuner process, now or before."""

    id: int
    name: str
    host: str
    pid: int
    versions: dict[str, Any]
    devices: Annotated[
        list[dict[str, Any]],
        Doc(
            "`fault`: why nothing can be measured there; `unconfined`: why clients' "
            "programs are not confined there; null otherwise"
        ),
    ]
    started_at: Time
    last_beat_at: Time
    stopped_at: Time | None
    n_trials: int
    n_infrastructure: int
    n_jobs: int
    job_id: int | None
    is_alive: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """An API key, without its secret."""

    id: int
    name: str
    public: Annotated[str, Doc("the part that is no secret")]
    can_read: bool
    can_submit: bool
    can_admin: bool
    can_priority: bool = _older(False)
    can_worker: bool = _older(False)
    device_kinds: Annotated[list[str], Doc("that a worker with it measures on")] = (
        dataclasses.field(default_factory=list)
    )
    max_running_jobs: int | None
    max_trials: int | None
    max_upload_bytes: int | None
    created_at: Time
    last_used_at: Time | None
    expires_at: Time | None
    revoked_at: Time | None
    project: Annotated[str, Doc("whose jobs it sees")] = _older("default")

    @property
    def scopes(self) -> list[str]:
        """What it may do."""
        return [scope for scope in SCOPES if getattr(self, f"can_{scope}")]


@dataclasses.dataclass(frozen=True)
class MadeKey:
    """A new key; `text` is shown only now."""

    key: Key
    text: Annotated[str, Doc("shown only now", examples=["felix_0a1b2c3d4e5f_..."])] = (
        dataclasses.field(repr=False)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Project:
    """A team: its keys see its jobs and no others; a limit of None is the service's, or none."""

    name: Annotated[str, Doc(examples=["vision"])]
    created_at: Time
    max_running_jobs: int | None
    max_trials: int | None
    max_bytes: int | None
    retention_days: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Webhook:
    """An address that is told of changes of a project's jobs."""

    id: int
    project: str
    url: str
    states: list[str]
    created_at: Time
    key_id: Annotated[int | None, Doc("the key that made it")]


@dataclasses.dataclass(frozen=True)
class MadeWebhook:
    """A new webhook; `secret`, which signs its notifications, is shown only now."""

    webhook: Webhook
    secret: Annotated[str, Doc("shown only now", examples=["whsec_..."])] = dataclasses.field(
        repr=False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivery:
    """One notification: `pending` until it is accepted (`delivered`), `dead` if it never was."""

    id: int
    webhook_id: int
    event_id: Annotated[
        str, Doc("the same for all tries: receivers drop what they have", examples=["job-7-2"])
    ]
    body: Annotated[str, Doc("the JSON that is sent")]
    state: Annotated[str, Doc(examples=["delivered"])]
    attempts: int
    created_at: Time
    delivered_at: Time | None
    last_status: Annotated[int | None, Doc("HTTP status of the last try")]
    last_error: str | None
