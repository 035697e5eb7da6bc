"""Jobs: what was submitted, how far it is, what came of it."""

from __future__ import annotations

from typing import Any

import pydantic

from server import states
from server.web.response_bodies import common


class Estimate(common.ResponseBody):
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
    waits_for: str | None = pydantic.Field(
        description="what has to come before any tuner can begin, like a device; null: nothing"
    )


class Group(common.ResponseBody):
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


class Network(common.ResponseBody):
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
        description="largest relative difference from its build without tuning"
    )
    failure: str | None = pydantic.Field(description="why it was not built")
    groups: list[Group]


class Job(common.ResponseBody):
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
    created_at: common.Time
    updated_at: common.Time
    started_at: common.Time | None
    finished_at: common.Time | None
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
    not_before: common.Time | None = pydantic.Field(
        description="earliest time of the next attempt"
    )
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
    network: Network | None = pydantic.Field(
        default=None, description="of an ONNX file, where one job is asked for"
    )


class SimilarJob(common.ResponseBody):
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


class BatchItem(common.ResponseBody):
    """One job of a batch, or why it was refused."""

    job_id: int | None
    state: states.State | None = pydantic.Field(description="null: refused, or deleted since")
    problem: dict[str, Any] | None = pydantic.Field(
        description="type, title, status, detail and, of a malformed job, errors"
    )


class Batch(common.ResponseBody):
    """Jobs that one request submitted, in its order."""

    id: int
    created_at: common.Time
    items: list[BatchItem]


class Template(common.ResponseBody):
    """A named request for a job."""

    name: str = pydantic.Field(examples=["nightly"])
    job: dict[str, Any] = pydantic.Field(description="the body of `POST /v1/jobs`")
    created_at: common.Time


class Task(common.ResponseBody):
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


class Code(common.ResponseBody):
    """The best schedule of a task; null before the artifact is made."""

    schedule: str | None = pydantic.Field(description="TVMScript")
    source: str | None = pydantic.Field(description="generated code: LLVM IR or CUDA")
    assembly: str | None = pydantic.Field(description="of a CPU; of a GPU the PTX")


class Event(common.ResponseBody):
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    seq: int
    at: common.Time
    type: str = pydantic.Field(examples=["trial"])
    payload: dict[str, Any]
    from_state: str | None
    to_state: str | None


class Events(common.ResponseBody):
    """Events after `after_seq`; the next request sends `last_seq`."""

    items: list[Event]
    last_seq: int


class Artifact(common.ResponseBody):
    """A file of a job."""

    name: str = pydantic.Field(examples=["gemm-512.zip"])
    kind: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: common.Time
