"""Bodies of responses, as typed models: the contract of `/v1`.

Units are in the names: latencies in microseconds, durations in seconds. Times are UTC.
"""

from __future__ import annotations

import datetime
from typing import Any, Generic, TypeVar

import pydantic

from server import states

T = TypeVar("T")
Time = datetime.datetime


class ResponseBody(pydantic.BaseModel):
    """Made from rows of the store by their attributes."""

    model_config = pydantic.ConfigDict(from_attributes=True, frozen=True)


class Page(ResponseBody, Generic[T]):
    """Some of a list; `next` is the `after` of the next page, null on the last."""

    items: list[T]
    next: int | None = None


class Listed(ResponseBody, Generic[T]):
    """A whole list."""

    items: list[T]


class Estimate(ResponseBody):
    """When a job will begin and how long it will take, from rates of recent jobs."""

    position: int = pydantic.Field(description="place in the queue; 1 is next")
    n_tuners: int = pydantic.Field(description="tuners alive that can measure it")
    trials_per_s: float | None = pydantic.Field(
        description="trials over tuning seconds of recent jobs on such devices; null: none yet"
    )
    n_recent_jobs: int = pydantic.Field(description="jobs that the rate is taken from")
    duration_s: float | None = pydantic.Field(description="tuning seconds of the job")
    begins_in_s: float | None = pydantic.Field(
        description="what runs and what is ahead, shared by the tuners; null: unknown"
    )


class Job(ResponseBody):
    """What a user wants tuned, and how far it is."""

    id: int = pydantic.Field(examples=[7])
    project: str = pydantic.Field(description="whose it is", examples=["default"])
    name: str = pydantic.Field(examples=["gemm 512"])
    note: str
    tags: list[str] = pydantic.Field(examples=[["nightly"]])
    state: states.State
    priority: int
    kind: str = pydantic.Field(description="operator, onnx or tir", examples=["operator"])
    op: str = pydantic.Field(description="operator or file name", examples=["gemm"])
    workload: dict[str, Any] = pydantic.Field(
        description="the submitted workload, whole",
        examples=[{"params": {"m": 512, "n": 512, "k": 512}}],
    )
    target: str = pydantic.Field(examples=["llvm"])
    target_key: str = pydantic.Field(description="which devices can measure it")
    resolved_target: str | None = pydantic.Field(description="the target of the device, as JSON")
    trials: int | None = pydantic.Field(description="budget", examples=[256])
    seconds: float | None = pydantic.Field(description="budget of tuning time")
    seed: int
    strategy: str = pydantic.Field(examples=["gradient"])
    options: dict[str, Any]
    key_id: int | None = pydantic.Field(description="the key that made it")
    created_at: Time
    updated_at: Time
    started_at: Time | None
    finished_at: Time | None
    n_tasks: int
    n_trials: int = pydantic.Field(examples=[96])
    n_failed: int
    flops: float = pydantic.Field(description="float operations of one run, weights included")
    best_us: float | None = pydantic.Field(
        description="weighted sum of the tasks' best latencies; null while one has none",
        examples=[512.3],
    )
    unscheduled_us: float | None
    speedup: float | None = pydantic.Field(description="unscheduled over best", examples=[41.7])
    gflops: float | None = pydantic.Field(description="GFLOP/s of the best", examples=[524.0])
    progress: float | None = pydantic.Field(description="share of the budget spent, 0 to 1")
    elapsed_s: float = pydantic.Field(description="tuning time, pauses left out")
    measured_s: float = pydantic.Field(description="seconds that kernels ran")
    breakdown: dict[str, Any] | None = pydantic.Field(description="where the time went, seconds")
    model: str | None = pydantic.Field(description="the cost model it began with")
    reason: str | None = pydantic.Field(description="why it ended")
    error: str | None
    message: str | None
    attempts: int
    not_before: Time | None = pydantic.Field(description="earliest time of the next attempt")
    worker_id: int | None
    last_seq: int = pydantic.Field(description="sequence number of its newest event")
    reused_from: int | None = pydantic.Field(
        default=None, description="the job whose artifact answered this one at once"
    )
    versions: dict[str, Any] | None = pydantic.Field(
        default=None, description="software that measured; empty: several versions did"
    )
    n_unscheduled: int = pydantic.Field(
        default=0, description="tasks whose unscheduled program was faster, and ships"
    )
    estimate: Estimate | None = pydantic.Field(
        default=None, description="of a queued job, where one job is asked for"
    )


class SimilarJob(ResponseBody):
    """A job as others see it beside theirs."""

    id: int
    name: str
    kind: str
    op: str
    workload: dict[str, Any]
    target: str
    state: states.State
    n_trials: int
    best_us: float | None
    speedup: float | None


class BatchItem(ResponseBody):
    """One job of a batch, or why it was refused."""

    job_id: int | None
    state: states.State | None = pydantic.Field(description="null: refused, or deleted since")
    problem: dict[str, Any] | None = pydantic.Field(
        description="type, title, status, detail and, of a malformed job, errors"
    )


class Batch(ResponseBody):
    """Jobs that one request submitted, in its order."""

    id: int
    created_at: Time
    items: list[BatchItem]


class Template(ResponseBody):
    """A named request for a job."""

    name: str = pydantic.Field(examples=["nightly"])
    job: dict[str, Any] = pydantic.Field(description="the body of `POST /v1/jobs`")
    created_at: Time


class Task(ResponseBody):
    """A tensor program of a job."""

    number: int
    name: str
    weight: float = pydantic.Field(description="how often the workload runs it")
    flops: float
    min_bytes: float
    n_sketches: int | None
    n_trials: int
    n_failed: int
    n_rounds: int
    best_us: float | None
    best_trial: int | None
    unscheduled_us: float | None
    unscheduled_message: str | None
    task_key: str | None = pydantic.Field(description="of program and device; null before tuning")
    program_key: str | None = pydantic.Field(description="of the program alone")
    reused_from: int | None = pydantic.Field(
        description="the job whose measurements it begins with"
    )
    settled: bool = pydantic.Field(description="those suffice: it gets no trials of its own")
    ships_unscheduled: bool = pydantic.Field(
        description="the unscheduled program was faster than every schedule; it is what ships"
    )
    gflops: float | None
    speedup: float | None


class Code(ResponseBody):
    """The best schedule of a task; null before the artifact is made."""

    schedule: str | None = pydantic.Field(description="TVMScript")
    source: str | None = pydantic.Field(description="generated code: LLVM IR or CUDA")
    assembly: str | None = pydantic.Field(description="of a CPU; of a GPU the PTX")


class NamedDecision(ResponseBody):
    """One decision of a schedule."""

    name: str = pydantic.Field(examples=["tile of i in gemm"])
    values: list[int] = pydantic.Field(
        description="its part of `decisions`; of a tile the factors, from the outermost on",
        examples=[[8, 4, 2, 8]],
    )
    text: str = pydantic.Field(description="the values in words", examples=["8 × 4 × 2 × 8"])


class Trial(ResponseBody):
    """One measured candidate: a latency or an error class."""

    number: int
    task: int
    round: int
    sketch_index: int
    decisions: list[int]
    named_decisions: list[NamedDecision] | None = pydantic.Field(
        default=None, description="the same by name; null: the names were not stored"
    )
    latency_us: float | None
    error: str | None = pydantic.Field(
        description="build, launch, timeout, wrong_result or infrastructure"
    )
    message: str
    spread: float | None = pydantic.Field(description="relative spread of the repeats")
    predicted_us: float | None
    best_us: float | None = pydantic.Field(description="the task's best so far")
    is_best: bool
    elapsed_s: float
    measured_s: float
    build_s: float
    run_s: float
    device: str
    measured_at: Time


class CurvePoint(ResponseBody):
    """Best so far after `trial` trials."""

    trial: int
    elapsed_s: float
    measured_s: float
    best_us: float
    share_of_best: float = pydantic.Field(
        description="the curve's last latency over this one: 1 is where it stands now"
    )


class Curve(ResponseBody):
    """Best so far of a job: the points where it fell, and where it stands now."""

    job_id: int
    name: str
    state: states.State
    unscheduled_us: float | None
    points: list[CurvePoint]


class PredictedPoint(ResponseBody):
    """The latency of a trial as the cost model predicted it, and as it was measured."""

    trial: int
    task: int
    round: int
    predicted_us: float
    latency_us: float


class Predicted(ResponseBody):
    """Predicted against measured: says how far the cost model can be trusted."""

    n: int
    rank_correlation: float | None = pydantic.Field(
        description="Spearman's, over all given points; null for fewer than two distinct values"
    )
    median_ratio: float | None = pydantic.Field(
        description="median of max(predicted/measured, measured/predicted); 1 is perfect"
    )
    points: list[PredictedPoint]


class Round(ResponseBody):
    """A round of the search; `steps` have step, temperature, loss and penalty of the descent."""

    task: int
    round: int
    n_candidates: int
    n_invalid: int
    predicted_us: float | None
    elapsed_s: float
    steps: list[dict[str, Any]]


class Training(ResponseBody):
    """One fine-tuning of the cost model."""

    n_records: int
    loss_before: float | None
    loss_after: float | None
    accepted: bool
    at: Time


class Search(ResponseBody):
    """How the search went."""

    rounds: list[Round]
    trainings: list[Training]
    errors: dict[str, int] = pydantic.Field(description="failed trials by error class")


class Event(ResponseBody):
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    seq: int
    at: Time
    type: str = pydantic.Field(examples=["trial"])
    payload: dict[str, Any]
    from_state: str | None
    to_state: str | None


class Events(ResponseBody):
    """Events after `after_seq`; the next request sends `last_seq`."""

    items: list[Event]
    last_seq: int


class Artifact(ResponseBody):
    """A file of a job."""

    name: str = pydantic.Field(examples=["gemm-512.zip"])
    kind: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: Time


class Device(ResponseBody):
    """A device that some tuner measures on."""

    name: str
    kind: str
    target_keys: list[str]
    target: dict[str, Any]
    hardware: dict[str, Any]
    model: str | None = pydantic.Field(description="pretrained, or null for the analytic one")
    n_tuners_alive: int
    worker_ids: list[int]


class Worker(ResponseBody):
    """A tuner process, now or before."""

    id: int
    name: str
    host: str
    pid: int
    versions: dict[str, Any]
    devices: list[dict[str, Any]] = pydantic.Field(
        description="`fault`: why nothing can be measured there; `unconfined`: why clients' "
        "programs are not confined there; null otherwise"
    )
    started_at: Time
    last_beat_at: Time
    stopped_at: Time | None
    n_trials: int
    n_infrastructure: int
    n_jobs: int
    job_id: int | None
    is_alive: bool


class Model(ResponseBody):
    """A cost model that ships with this version."""

    name: str = pydantic.Field(examples=["llvm"])
    sha256: str
    size_bytes: int
    metadata: dict[str, Any]
    card: str = pydantic.Field(description="Markdown")


class Key(ResponseBody):
    """An API key; its secret is shown once, when it is made."""

    id: int
    project: str = pydantic.Field(description="whose jobs it sees")
    name: str
    public: str = pydantic.Field(description="the part that is no secret")
    can_read: bool
    can_submit: bool
    can_admin: bool
    can_priority: bool
    max_running_jobs: int | None
    max_trials: int | None
    max_upload_bytes: int | None
    created_at: Time
    last_used_at: Time | None
    expires_at: Time | None
    revoked_at: Time | None


class MadeKey(ResponseBody):
    """A new key, with the text to keep."""

    key: Key
    text: str = pydantic.Field(description="shown only now", examples=["felix_0a1b2c3d4e5f_..."])


class Quota(ResponseBody):
    """What a key may have."""

    max_running_jobs: int
    max_trials: int
    max_upload_bytes: int


class Me(ResponseBody):
    """The key behind the request."""

    key: Key
    quota: Quota
    csrf_token: str | None = pydantic.Field(description="of the login, if a cookie was sent")


class Login(ResponseBody):
    """A dashboard login; the cookie comes in a header."""

    csrf_token: str
    expires_at: Time


class Audit(ResponseBody):
    """What a key did."""

    id: int
    at: Time
    project: str
    key_id: int | None
    key_name: str
    action: str
    subject: str
    detail: dict[str, Any]
    remote: str


class Health(ResponseBody):
    """Whether the process works."""

    status: str = pydantic.Field(examples=["ok"])


class Ready(ResponseBody):
    """The service can do its work: the database has the right schema, all disks take data."""

    status: str = pydantic.Field(examples=["ready"])
    schema_revision: str
    n_tuners_alive: int
