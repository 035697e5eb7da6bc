"""What clients send, checked: bodies, queries and paths, in bounds that databases can store."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias, get_args

import fastapi
import pydantic

from felix import names
from felix.search import strategies
from server import states as job_states
from server.web import response_bodies

#: The largest number of an INTEGER column.
MAX_INT = 2**31 - 1

#: Jobs whose curves are laid over one another.
MAX_COMPARED = 32

#: Jobs of a batch.
MAX_BATCH = 100

#: Names of templates: they are part of addresses.
TEMPLATE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

#: In OpenAPI, the responses of a route that makes a job.
MADE_JOB: dict[int | str, dict[str, Any]] = {
    200: {"model": response_bodies.Job, "description": "An earlier request made it"},
    201: {"headers": {"Location": {"schema": {"type": "string"}}}},
}

#: Bytes of free-form JSON: operator parameters.
MAX_JSON_BYTES = 64 << 10

Id = Annotated[int, fastapi.Path(ge=1, le=MAX_INT, examples=[7])]
Number = Annotated[int, fastapi.Path(ge=0, le=MAX_INT, examples=[0])]
TaskFilter = Annotated[
    int | None, fastapi.Query(ge=0, le=MAX_INT, description="only this task of the job")
]
Limit = Annotated[int, fastapi.Query(ge=1, le=1000, description="items of a page at most")]
After = Annotated[
    int | None, fastapi.Query(ge=0, le=MAX_INT, description="`next` of the page before")
]
IdempotencyKey = Annotated[
    str | None,
    fastapi.Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Repeating a request with the same key makes no second job",
    ),
]


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """JSON that every database keeps: finite, valid Unicode, no NUL, of bounded size."""
    try:
        content = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("must be plain JSON: finite numbers, valid text") from None
    if len(content) > MAX_JSON_BYTES or "\\u0000" in content.decode():
        raise ValueError(f"must be at most {MAX_JSON_BYTES} bytes without NUL characters")
    for text in names.strings(value):
        reason = names.problem(text) if text else None
        if reason is not None:
            raise ValueError(f"must have no text that {reason}")
    return value


def _line(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError("must be one line of printable text without space around it")
    return value


def _file_name(value: str) -> str:
    if value in ("", ".", "..") or "/" in value or "\\" in value:
        raise ValueError("must be a file's name without a path")
    return _line(value)


def _strategy(value: str) -> str:
    if why := strategies.problem(value):
        raise ValueError(why)
    return value


def _text(value: str) -> str:
    if reason := names.text_problem(value):
        raise ValueError(f"must be plain text; it {reason}")
    return value


Params = Annotated[dict[str, Any], pydantic.AfterValidator(_plain)]
Line = Annotated[str, pydantic.Field(max_length=200), pydantic.AfterValidator(_line)]
Text = Annotated[str, pydantic.Field(max_length=10_000), pydantic.AfterValidator(_text)]
FileName = Annotated[str, pydantic.Field(max_length=200), pydantic.AfterValidator(_file_name)]
Tag = Annotated[Line, pydantic.Field(min_length=1, max_length=64)]
Tags = Annotated[list[Tag], pydantic.Field(max_length=32)]
Extent = Annotated[int, pydantic.Field(ge=1, le=MAX_INT)]
Shapes = Annotated[
    dict[Line, Annotated[list[Extent], pydantic.Field(max_length=16)]],
    pydantic.Field(max_length=64),
]
Element: TypeAlias = (
    Annotated[bool, pydantic.Strict()]
    | Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
    | pydantic.FiniteFloat
)
Values = Annotated[
    dict[Line, Element | Annotated[list[Element], pydantic.Field(max_length=1024)]],
    pydantic.Field(max_length=64),
]
StrategyName = Annotated[
    str,
    pydantic.AfterValidator(_strategy),
    pydantic.Field(json_schema_extra={"enum": list(strategies.NAMES)}),
]


class RequestBody(pydantic.BaseModel):
    """A body; unknown fields are refused, so that typing errors are seen."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)


class Options(RequestBody):
    """How the search works."""

    round_size: int | None = pydantic.Field(
        default=None, ge=1, le=256, description="candidates a round"
    )
    patience_rounds: int | None = pydantic.Field(
        default=None, ge=1, le=1000, description="stop after so many rounds without an improvement"
    )


class JobSettings(RequestBody):
    """What all forms of workloads have in common."""

    target: Line = pydantic.Field(
        default="llvm", min_length=1, description="llvm, cuda, h100, ..."
    )
    name: Line | None = pydantic.Field(default=None, description="default: made from the workload")
    note: Text = ""
    tags: Tags = []
    priority: int = pydantic.Field(
        default=0,
        ge=-1000,
        le=1000,
        description="higher goes first; more than 0 needs the scope priority",
    )
    trials: int | None = pydantic.Field(
        default=None, ge=1, le=MAX_INT, description="default, if seconds are not given: 64 a task"
    )
    seconds: float | None = pydantic.Field(
        default=None,
        gt=0,
        le=30 * 86400,
        description="from the start of the run to its artifacts, without the queue; at most 10 % "
        "or 5 s more. What there is no time for is left out",
    )
    seed: int = pydantic.Field(default=0, ge=0, le=MAX_INT)
    strategy: StrategyName | None = pydantic.Field(
        default=None, description="default: gradient on a CPU, local on a GPU"
    )
    options: Options = Options()
    reuse: bool = pydantic.Field(
        default=True,
        description="take what earlier jobs measured of the same programs: at once if they spent "
        "this budget, else as a start; false: begin anew",
    )
    allow_tf32: bool = pydantic.Field(
        default=False,
        description="products of float32 may be computed in TF32 on a GPU: faster, with 10 bits "
        "of mantissa; results of such programs are kept apart from exact ones",
    )

    @property
    def chosen_options(self) -> dict[str, Any]:
        """The options that are given."""
        return self.options.model_dump(exclude_none=True)


class OperatorWorkload(RequestBody):
    """An operator of the catalogue; `GET /v1/operators` has the parameters as JSON Schema."""

    kind: Literal["operator"]
    name: Line = pydantic.Field(min_length=1, examples=["gemm"])
    params: Params = pydantic.Field(examples=[{"m": 512, "n": 512, "k": 512}])


class TirWorkload(RequestBody):
    """A program as TVM writes it (`felix.Task.to_json`, or a TIR function as TVM JSON)."""

    kind: Literal["tir"]
    name: FileName = pydantic.Field(default="program", min_length=1)
    program: str = pydantic.Field(min_length=1)


class NewJob(JobSettings):
    """A job for an operator or a program; files go to `POST /v1/jobs/upload`."""

    workload: Annotated[OperatorWorkload | TirWorkload, pydantic.Field(discriminator="kind")]

    model_config = pydantic.ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "workload": {
                        "kind": "operator",
                        "name": "gemm",
                        "params": {"m": 512, "n": 512, "k": 512},
                    },
                    "target": "llvm",
                    "trials": 64,
                    "tags": ["first"],
                }
            ]
        }
    )


class NewBatch(RequestBody):
    """Jobs to submit together; each is checked for itself."""

    jobs: list[dict[str, Any]] = pydantic.Field(
        min_length=1,
        max_length=MAX_BATCH,
        description="bodies of `POST /v1/jobs`",
        examples=[
            [
                {
                    "workload": {
                        "kind": "operator",
                        "name": "gemm",
                        "params": {"m": m, "n": 8, "k": 8},
                    }
                }
                for m in (8, 16)
            ]
        ],
    )


class TemplateChanges(RequestBody):
    """What a job has otherwise than its template."""

    job: Params = pydantic.Field(
        default={}, examples=[{"workload": {"params": {"m": 1024}}, "trials": 128}]
    )


class UploadedJob(JobSettings):
    """The field `job` of an upload."""

    kind: Literal["onnx", "tir"] = "onnx"
    shapes: Shapes = pydantic.Field(
        default={}, description="of ONNX inputs whose extents the file leaves open"
    )
    values: Values = pydantic.Field(
        default={}, description="of ONNX inputs that are the same in every call, such as axes"
    )
    network: bool | None = pydantic.Field(
        default=None,
        description="build the whole network from the best programs when tuning ends; default: "
        "true for ONNX, false for TIR",
    )
    pytorch: bool = pydantic.Field(
        default=False,
        description="PyTorch's own operators run groups of the network where they are faster, if "
        "the tuner has the device: its artifact then needs PyTorch, too",
    )

    @pydantic.model_validator(mode="after")
    def _network_of_onnx(self) -> UploadedJob:
        if self.network and self.kind != "onnx":
            raise ValueError("network: only an ONNX file is a network; a TIR file is one program")
        if self.pytorch and not self.is_network:
            raise ValueError("pytorch: it is for groups of a network, and none is built")
        return self

    @property
    def is_network(self) -> bool:
        """Whether the job builds a network."""
        return self.kind == "onnx" and self.network is not False


class Changes(RequestBody):
    """What may change in any state; fields that are left out stay."""

    name: Line | None = None
    note: Text | None = None
    priority: int | None = pydantic.Field(default=None, ge=-1000, le=1000)
    tags: Tags | None = None

    model_config = pydantic.ConfigDict(
        json_schema_extra={"examples": [{"priority": 10, "tags": ["release"]}]}
    )


Scope = Literal["read", "submit", "priority", "worker", "admin"]

#: What keys may do: a key has `can_` before each.
SCOPES: tuple[Scope, ...] = get_args(Scope)


class NewKey(RequestBody):
    """What a key may do; quotas that are left out are the service's."""

    name: Line = pydantic.Field(min_length=1, examples=["ci"])
    project: Line = pydantic.Field(
        default="default", min_length=1, max_length=64, description="whose jobs it sees"
    )
    scopes: list[Scope] = pydantic.Field(default=["read"], min_length=1, max_length=5)
    device_kinds: list[Line] = pydantic.Field(
        default=[],
        max_length=64,
        examples=[["h200"]],
        description="of the devices that a key with the scope worker measures on",
    )
    max_running_jobs: int | None = pydantic.Field(default=None, ge=0, le=MAX_INT)
    max_trials: int | None = pydantic.Field(default=None, ge=1, le=MAX_INT)
    max_upload_bytes: int | None = pydantic.Field(default=None, ge=0, le=2**50)
    expires_s: float | None = pydantic.Field(default=None, gt=0, le=10 * 366 * 86400)


class NewLogin(RequestBody):
    """A login to the dashboard."""

    key: str = pydantic.Field(max_length=200, examples=["felix_0a1b2c3d4e5f_..."])


#: Names of projects are permanent and appear in addresses.
ProjectName = Annotated[
    str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", examples=["vision"])
]

ReportedState = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]

#: Bytes of a webhook's address.
MAX_URL = 2000

_Limit = Annotated[int | None, pydantic.Field(ge=0, le=MAX_INT)]


class ProjectLimits(RequestBody):
    """What a project may have; null is the service's limit, or none."""

    max_running_jobs: _Limit = pydantic.Field(
        default=None, description="jobs of all its keys that are not finished", examples=[8]
    )
    max_trials: Annotated[int | None, pydantic.Field(ge=1, le=MAX_INT)] = pydantic.Field(
        default=None, description="of one job"
    )
    max_bytes: Annotated[int | None, pydantic.Field(ge=0, le=2**62)] = pydantic.Field(
        default=None, description="of uploads and artifacts, each content counted once"
    )
    retention_days: Annotated[int | None, pydantic.Field(ge=1, le=36_500)] = pydantic.Field(
        default=None,
        description="files of jobs that ended so long ago are removed, unless tagged `keep`",
    )


class NewProject(ProjectLimits):
    """A project."""

    name: ProjectName


class NewWebhook(RequestBody):
    """An address that is told of changes of the project's jobs."""

    url: str = pydantic.Field(
        min_length=1, max_length=MAX_URL, examples=["https://ci.example/felix"]
    )
    states: list[ReportedState] = pydantic.Field(
        default=["running", "paused", "succeeded", "failed", "cancelled"],
        min_length=1,
        max_length=6,
        description="what is reported",
    )

    @property
    def reported(self) -> list[job_states.State]:
        """The states, each once."""
        return [job_states.State(name) for name in dict.fromkeys(self.states)]
