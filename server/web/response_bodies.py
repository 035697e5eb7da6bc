"""Bodies of responses, as typed models: the contract of `/v1`.

Fields that clients get as rows are declared there (`felix.client.rows`). Units are in the names:
latencies in microseconds, durations in seconds. Times are UTC.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any, Generic, TypeVar, dataclass_transform

import pydantic

from felix.client import rows
from server import states
from server.store import rows as store_rows

T = TypeVar("T")
Time = datetime.datetime


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(pydantic.Field,))
class ResponseBody(pydantic.BaseModel, frozen=True, from_attributes=True):
    """Made from rows of the store by their attributes."""


Body = TypeVar("Body", bound=ResponseBody)


class Page(ResponseBody, Generic[T]):
    """Some of a list; `next` is the `after` of the next page, null on the last."""

    items: list[T]
    next: int | None = None


class Listed(ResponseBody, Generic[T]):
    """A whole list."""

    items: list[T]


def listed(kind: type[Body], found: Iterable[object]) -> Listed[Body]:
    """The list of all that is found, each as a body of a kind."""
    return Listed(items=[kind.model_validate(each) for each in found])


class Estimate(ResponseBody, rows.Estimate):
    """When a job will begin and how long it will take, from rates of recent jobs."""


class Group(ResponseBody):
    """A program that a network calls."""

    name: str
    calls: int = pydantic.Field(description="how often a call of the network calls it")
    dtypes: list[str] = pydantic.Field(
        description="element types of its tensors", examples=[["bfloat16", "float32"]]
    )
    task: int | None = pydantic.Field(description="the job's task; null: Felix cannot tune it")
    untuned: str | None = pydantic.Field(description="why there is no schedule of Felix")
    felix_us: float | None = pydantic.Field(description="a call of Felix's best program")
    tvm_us: float | None = pydantic.Field(description="as TVM schedules it by default")
    pytorch_us: float | None = pydantic.Field(
        description="PyTorch's operators, if the job asked for them"
    )
    ships: str | None = pydantic.Field(
        description="felix, tvm or pytorch: whose program the network runs; null: not built"
    )
    reason: str | None = pydantic.Field(description="why that one")
    latency_us: float | None = pydantic.Field(
        description="a call of what ships; before that is known, of the fastest"
    )
    total_us: float | None = pydantic.Field(description="of all its calls")
    share: float | None = pydantic.Field(
        description="of `total_us` in the sum over groups that have one, 0 to 1"
    )


class Network(ResponseBody):
    """The network that a job builds from the best programs."""

    name: str = pydantic.Field(examples=["resnet50"])
    dtypes: list[str] = pydantic.Field(description="element types of its groups' tensors")
    latency_us: float | None = pydantic.Field(
        description="sum of calls x latency over groups with a task; null while one has none"
    )
    call_us: float | None = pydantic.Field(
        description="median of a whole call, with warm caches; null before it is built, and of "
        "one that was built for a device of a cluster: its run.py times it"
    )
    max_error: float | None = pydantic.Field(
        description="largest relative difference from ONNX Runtime, or its untuned build"
    )
    failure: str | None = pydantic.Field(description="why it was not built")
    groups: list[Group]


class Job(ResponseBody, rows.Job):
    """What a user wants tuned, and how far it is."""

    state: states.State
    not_before: Time | None = pydantic.Field(description="earliest time of the next attempt")
    versions: dict[str, Any] | None = pydantic.Field(
        default=None, description="software that measured; empty: several versions did"
    )
    # a client's row has these as JSON
    estimate: Estimate | None = pydantic.Field(  # type: ignore[assignment]
        default=None, description="of a queued job, where one job is asked for"
    )
    network: Network | None = pydantic.Field(  # type: ignore[assignment]
        default=None, description="of an ONNX file, where one job is asked for"
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


class Batch(ResponseBody, rows.Batch):
    """Jobs that one request submitted, in its order."""

    items: list[BatchItem]  # type: ignore[assignment]


class Template(ResponseBody, rows.Template):
    """A named request for a job."""


class Task(ResponseBody, rows.Task):
    """A tensor program of a job."""

    unscheduled_message: str | None
    task_key: str | None = pydantic.Field(description="of program and device; null before tuning")


class Code(ResponseBody):
    """The best schedule of a task; null before the artifact is made."""

    schedule: str | None = pydantic.Field(description="TVMScript")
    source: str | None = pydantic.Field(description="generated code: LLVM IR or CUDA")
    assembly: str | None = pydantic.Field(description="of a CPU; of a GPU the PTX")


class Event(ResponseBody, rows.Event):
    """Something that happened to a job; `seq` counts from 1 without gaps."""


class Events(ResponseBody):
    """Events after `after_seq`; the next request sends `last_seq`."""

    items: list[Event]
    last_seq: int


class Artifact(ResponseBody, rows.Artifact):
    """A file of a job."""


class NamedDecision(ResponseBody):
    """One decision of a schedule, or a parameter of a template, whose name comes first."""

    name: str = pydantic.Field(examples=["tile of i in gemm"])
    values: list[int] = pydantic.Field(
        description="its part of `decisions`; of a tile the factors, from the outermost on; of "
        "a template's name none",
        examples=[[8, 4, 2, 8]],
    )
    text: str = pydantic.Field(description="the values in words", examples=["8 × 4 × 2 × 8"])


class Trial(ResponseBody, rows.Trial):
    """One measured candidate: a latency or an error class."""

    named_decisions: list[NamedDecision] | None = pydantic.Field(  # type: ignore[assignment]
        default=None, description="the same by name; null: the names were not stored"
    )


class CurvePoint(ResponseBody, rows.CurvePoint):
    """Best so far after `trial` trials."""


class Curve(ResponseBody, rows.Curve):
    """Best so far of a job: the points where it fell, and where it stands now."""

    state: states.State
    points: list[CurvePoint]  # type: ignore[assignment]


class PredictedPoint(ResponseBody, store_rows.Predicted):
    """The latency of a trial as the cost model predicted it, and as it was measured."""


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


class DeviceReport(ResponseBody):
    """One device as its tuner last saw it."""

    worker_id: int
    place: str = pydantic.Field(description="its name among the devices of its tuner")
    host: str
    driver: str | None
    versions: dict[str, Any]
    fault: str | None = pydantic.Field(description="why it measures nothing; null: it is well")
    queue: int = pydantic.Field(description="candidates that wait for it")
    n_measured: int = pydantic.Field(description="candidates that it measured in the last hour")
    error_rate: float | None = pydantic.Field(
        description="share of them that failed by the device's or its machine's fault"
    )
    clock_ghz: float | None
    power_w: float | None
    seen_at: Time


class Device(ResponseBody, rows.Device):
    """A device that some tuner measures on."""

    reports: list[DeviceReport] = pydantic.Field(  # type: ignore[assignment]
        description="each one that tuners saw lately"
    )


class Worker(ResponseBody, rows.Worker):
    """A tuner process, now or before."""


class Model(ResponseBody):
    """A cost model that ships with this version."""

    name: str = pydantic.Field(examples=["llvm"])
    sha256: str
    size_bytes: int
    metadata: dict[str, Any]
    card: str = pydantic.Field(description="Markdown")


class Health(ResponseBody):
    """Whether the process works."""

    status: str = pydantic.Field(examples=["ok"])


class Ready(ResponseBody):
    """The service can do its work: the database has the right schema, all disks take data."""

    status: str = pydantic.Field(examples=["ready"])
    schema_revision: str
    n_tuners_alive: int


class Key(ResponseBody, rows.Key):
    """An API key; its secret is shown once, when it is made."""


class MadeKey(ResponseBody, rows.MadeKey):
    """A new key, with the text to keep."""

    key: Key


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


class Project(ResponseBody, rows.Project):
    """A team: its keys see its jobs and no others."""


class ProjectUsage(Project):
    """A project, and what it has now."""

    n_running_jobs: int = pydantic.Field(description="jobs that are not finished")
    n_bytes: int = pydantic.Field(description="of uploads and artifacts")


class Webhook(ResponseBody, rows.Webhook):
    """A webhook; its secret is shown once, when it is made."""


class MadeWebhook(ResponseBody, rows.MadeWebhook):
    """A new webhook, with the secret that signs its notifications."""

    webhook: Webhook


class Delivery(ResponseBody, rows.Delivery):
    """One notification: `pending` until the receiver accepts it, `dead` if it never did."""

    not_before: Time = pydantic.Field(description="earliest time of the next try")
