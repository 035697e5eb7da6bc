"""The form for new jobs: an operator's fields from its JSON Schema, or a file.

Operators come in as an ordinary form and are checked here, so that errors stand at their fields.
Files are sent by the page's script straight to `/v1/jobs/upload`, which reads them under the
key's limit. Both end in `server.submission`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from felix.search import strategies
from server import errors, job_actions, submission
from server.dashboard import fields, render
from server.dashboard.pages import logins
from server.store import jobs, workers
from server.web import auth, dependencies, request_bodies

router = fastapi.APIRouter(
    prefix="/dashboard/submit", route_class=render.Page, include_in_schema=False
)

FIRST = "gemm"

#: Fields of the form that all workloads have; parameters of operators begin with `p.`.
COMMON = ("name", "target", "trials", "seconds", "tags", "priority", "seed", "strategy", "note")
OPTIONS = ("round_size", "patience_rounds")
_PARAM = "p."

#: Choices of the target field besides the devices that are there.
TARGETS = ("llvm", "cuda", "h100", "a100")


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The form of an operator: its texts, and by field (or for all of it) what is wrong."""

    op: str
    texts: Mapping[str, str]
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""


@router.get("")
def form(
    request: fastapi.Request,
    viewer: render.Viewer,
    services: dependencies.ServicesDep,
    op: Annotated[str, fastapi.Query(max_length=100)] = "",
    like: Annotated[int | None, fastapi.Query(ge=1, le=request_bodies.MAX_INT)] = None,
    target: Annotated[str, fastapi.Query(max_length=200)] = "",
) -> fastapi.Response:
    """An empty form of an operator, or one with the settings of another job."""
    texts = {"target": target} if target else {}
    if like is not None:
        with services.db.read() as tx:
            job = jobs.get(tx, like)
        if job.kind == "operator":
            op = job.op
            texts = _texts_of(job)
    operators = services.parser.operators()
    op = op or (FIRST if FIRST in operators else next(iter(operators)))
    if op not in operators:
        raise errors.NotFound(f"there is no operator {op!r}")
    if like is None:
        texts |= {f"{_PARAM}{k}": v for k, v in fields.defaults(operators[op]).items()}
    return _page(request, viewer, services, _Form(op, texts))


@router.post("")
async def submit(
    request: fastapi.Request, viewer: render.Viewer, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Queue the job and show it; or the form again, with what is wrong."""
    form_fields = await logins.checked_form(request, viewer)
    texts = {name: values[-1] for name, values in form_fields.items()}
    operators = await anyio.to_thread.run_sync(services.parser.operators)
    op = texts.get("op", "")
    if op not in operators:
        raise errors.NotFound("there is no such operator")
    if not viewer.can("submit"):
        raise errors.Forbidden("this needs a key with the scope submit")
    params = {name[len(_PARAM) :]: text for name, text in texts.items() if name.startswith(_PARAM)}
    reading = fields.read(operators[op], params)
    wrong = {f"{_PARAM}{name}": message for name, message in reading.wrong.items()}
    body, more = _body(op, reading.params, texts)
    wrong |= more
    problem = ""
    if body is not None and not wrong:
        try:
            from_form = submission.from_json(body, _idempotency_key(body, texts))
            made = await submission.submit(services, viewer, from_form)
            return responses.RedirectResponse(f"/dashboard/jobs/{made.job.id}", 303)
        except (
            errors.InvalidRequest,
            errors.QuotaExceeded,
            errors.Conflict,
            submission.Busy,
        ) as error:
            problem = str(error)
    filled = _Form(op, texts, wrong, problem)
    return await anyio.to_thread.run_sync(_page, request, viewer, services, filled)


def _page(
    request: fastapi.Request,
    viewer: auth.Caller,
    services: dependencies.Services,
    filled: _Form,
) -> fastapi.Response:
    operators = services.parser.operators()
    with services.db.read() as tx:
        tuners = workers.every(tx, services.settings.stale_s)
    quota = job_actions.quota(services, viewer)
    return render.page(
        request, "submit.html", viewer, 422 if filled.wrong or filled.problem else 200,
        op=filled.op,
        operators=sorted(operators),
        about=operators[filled.op].get("description", ""),
        fields=fields.of_schema(operators[filled.op]),
        texts=filled.texts,
        wrong=filled.wrong,
        problem=filled.problem,
        targets=sorted({*TARGETS, *_alive_kinds(tuners)}),
        n_alive=sum(tuner.is_alive for tuner in tuners),
        strategies=strategies.NAMES,
        default_trials=submission.DEFAULT_TRIALS,
        max_trials=quota.max_trials,
        max_upload_bytes=job_actions.upload_limit(services, viewer),
        form_id=secrets.token_urlsafe(16),
        can_submit=viewer.can("submit"),
    )  # fmt: skip


def _alive_kinds(tuners: Any) -> set[str]:
    """The kinds of the devices that are there."""
    alive = (device for tuner in tuners if tuner.is_alive for device in tuner.devices)
    return {str(device["kind"]) for device in alive if "kind" in device}


def _body(
    op: str, params: Mapping[str, Any], texts: Mapping[str, str]
) -> tuple[request_bodies.NewJob | None, dict[str, str]]:
    """The job that the form describes, or by field what is wrong."""
    settings: dict[str, Any] = {
        name: texts[name].strip() for name in COMMON if texts.get(name, "").strip()
    }
    if "tags" in settings:
        settings["tags"] = [tag.strip() for tag in settings["tags"].split(",") if tag.strip()]
    options = {name: texts[name].strip() for name in OPTIONS if texts.get(name, "").strip()}
    body = {**settings, "options": options,
            "workload": {"kind": "operator", "name": op, "params": dict(params)}}  # fmt: skip
    try:
        return request_bodies.NewJob.model_validate(body), {}
    except pydantic.ValidationError as error:
        return None, {_place(each["loc"]): _words(each["msg"]) for each in error.errors()}


def _place(location: tuple[int | str, ...]) -> str:
    """The field an error belongs to; the form's head, if to none."""
    names = [part for part in location if part in COMMON or part in OPTIONS]
    return str(names[-1]) if names else "op"


def _words(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return message.split(", unable to parse")[0]


def _idempotency_key(body: request_bodies.NewJob, texts: Mapping[str, str]) -> str:
    """An idempotency key: a form that is sent twice unchanged makes one job."""
    identity = f"{texts.get('form_id', '')}\n{body.model_dump_json()}"
    return f"form-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def _texts_of(job: Any) -> dict[str, str]:
    """The fields of a form for a job like this one."""
    params = fields.texts_of(job.workload.get("params", {}))
    texts = {f"{_PARAM}{name}": text for name, text in params.items()}
    for name in COMMON:
        value = getattr(job, name)
        if value is not None:
            texts[name] = fields.text_of(value)
    return texts | {name: str(value) for name, value in job.options.items() if name in OPTIONS}
