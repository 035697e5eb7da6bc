"""The form for new jobs: an operator's fields from its JSON Schema, or a file.

It is one form with several sources (a template of a program is one, too), and what all need stands
in it once. It comes in as an ordinary form and is checked here, so that errors stand at their
fields; the page's script sends large files straight to `/v1/jobs/upload`, which reads them under
the key's limit. All end in `server.submission`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import anyio.to_thread
import fastapi
import pydantic
from fastapi import exceptions
from starlette import datastructures, responses

from felix.search import strategies
from server import actions, errors, submission
from server.dashboard import job_form, render
from server.dashboard.pages import access
from server.parsing import parser
from server.store import jobs, requests
from server.store import tuners as store_tuners
from server.web import auth, request_bodies, uploads

router = render.router("/dashboard/submit")

FIRST = "gemm"
OPERATOR, FILE, TEMPLATE = "operator", "file", "template"

#: Choices of the target field besides the devices that are there.
TARGETS = ("llvm", "cuda", "h100", "a100")

#: What every device can run: a target that refuses it is at fault itself.
_PROBE = parser.Workload(kind="operator", name="gemm", params={"m": 8, "n": 8, "k": 8})


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The form: its source and texts, and by field (or for all of it) what is wrong."""

    source: str
    op: str
    texts: Mapping[str, str]
    #: the name of the template whose program it submits; empty without one
    template: str = ""
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""


class _Refused(Exception):
    """What is wrong, by field; `problem` belongs to none."""

    def __init__(self, wrong: Mapping[str, str], problem: str = "") -> None:
        super().__init__(problem)
        self.wrong, self.problem = wrong, problem


@router.get("")
def form(
    viewer: render.Viewer,
    op: Annotated[str, fastapi.Query(max_length=100)] = "",
    like: Annotated[int | None, fastapi.Query(ge=1, le=request_bodies.MAX_INT)] = None,
    target: Annotated[str, fastapi.Query(max_length=200)] = "",
    source: Annotated[str, fastapi.Query(max_length=20)] = OPERATOR,
    template: Annotated[str, fastapi.Query(max_length=100)] = "",
) -> fastapi.Response:
    """An empty form of a source, or one with the settings of another job or a template."""
    texts = {"target": target} if target else {}
    source = FILE if source == FILE else OPERATOR
    if like is not None:
        with viewer.read() as tx:
            job = jobs.get(tx, like)
        if job.kind == "operator":
            op, texts = job.op, job_form.of_job(job)
    elif template:
        with viewer.read() as tx:
            request_body = requests.get_template(tx, viewer.key.id, template).job
        texts = job_form.of_request(request_body)
        if request_body["workload"]["kind"] == OPERATOR:
            op = request_body["workload"]["name"]
        else:
            source = TEMPLATE
    operators = viewer.services.parser.operators()
    op = op or (FIRST if FIRST in operators else next(iter(operators)))
    if op not in operators:
        raise errors.NotFound(f"there is no operator {op!r}")
    texts = job_form.of_params(job_form.defaults(operators[op])) | texts
    return _page(viewer, _Form(source, op, texts, template))


@router.post("")
async def submit(request: fastapi.Request, viewer: render.Viewer) -> fastapi.Response:
    """Queue the job and show it; or the form again, with what is wrong."""
    form_fields = await access.checked_form(request, viewer, max_files=1)
    texts = {name: values[-1] for name, values in form_fields.items()}
    operators = await anyio.to_thread.run_sync(viewer.services.parser.operators)
    source = texts.get("source", OPERATOR)
    if source not in (FILE, TEMPLATE):
        source = OPERATOR
    op = texts.get("op", "" if source == OPERATOR else FIRST)
    if op not in operators:
        raise errors.NotFound("there is no such operator")
    viewer.need("submit")
    try:
        if source == FILE:
            made = await _submit_file(request, viewer, texts)
        elif source == TEMPLATE:
            with viewer.read() as tx:
                saved = requests.get_template(tx, viewer.key.id, texts.get("template", ""))
            made = await _submit_json(viewer, texts, saved.job["workload"], {})
        else:
            reading = job_form.read(operators[op], job_form.params(texts))
            workload = {"kind": "operator", "name": op, "params": reading.params}
            wrong = job_form.of_params(reading.wrong)
            made = await _submit_json(viewer, texts, workload, wrong)
    except _Refused as refused:
        template = texts.get("template", "")
        filled = _Form(source, op, texts, template, refused.wrong, refused.problem)
        return await anyio.to_thread.run_sync(_page, viewer, filled)
    return responses.RedirectResponse(f"/dashboard/jobs/{made.job.id}", 303)


async def _submit_json(
    viewer: auth.Caller,
    texts: Mapping[str, str],
    workload: Mapping[str, Any],
    wrong: dict[str, str],
) -> jobs.RequestedJob:
    """Submit a program, or an operator of whose parameters `wrong` says what is wrong."""
    try:
        body = request_bodies.NewJob.model_validate(
            {**job_form.settings(texts), "workload": workload}
        )
    except pydantic.ValidationError as error:
        raise _Refused(wrong | job_form.wrong(error.errors())) from error
    if wrong:
        raise _Refused(wrong)
    from_form = submission.from_json(viewer, body, job_form.idempotency_key(body, texts))
    params = job_form.params(texts) if workload["kind"] == OPERATOR else {}
    return await _queue(viewer, from_form, list(job_form.of_params(params)))


async def _submit_file(
    request: fastapi.Request, viewer: auth.Caller, texts: Mapping[str, str]
) -> jobs.RequestedJob:
    try:
        body = request_bodies.UploadedJob.model_validate(job_form.of_file(texts))
    except job_form.Wrong as error:
        raise _Refused({"shapes": str(error)}) from error
    except pydantic.ValidationError as error:
        raise _Refused(job_form.wrong(error.errors())) from error
    file = (await request.form()).get("file")
    if not isinstance(file, datastructures.UploadFile) or not file.filename:
        raise _Refused({"file": "is needed: a model or a program"})
    async with _received(file, body, actions.upload_limit(viewer)) as upload:
        key = job_form.idempotency_key(body, {**texts, "sha256": upload.sha256})
        return await _queue(viewer, submission.from_upload(upload, key), ["file"])


@contextlib.asynccontextmanager
async def _received(
    file: datastructures.UploadFile, body: request_bodies.UploadedJob, limit_bytes: int
) -> AsyncIterator[uploads.Upload]:
    try:
        async with uploads.stored(file, body, limit_bytes) as upload:
            yield upload
    except exceptions.RequestValidationError as error:
        raise _Refused({"file": job_form.words(error.errors()[0]["msg"])}) from error
    except (errors.TooLarge, errors.InvalidRequest) as error:
        raise _Refused({"file": str(error)}) from error


async def _queue(
    viewer: auth.Caller, new: submission.Submission, sources: list[str]
) -> jobs.RequestedJob:
    """Submit; a refusal is put at the field that it is about."""
    quota = actions.quota(viewer)
    if new.body.trials is not None and new.body.trials > quota.max_trials:
        raise _Refused(
            {"trials": f"must be at most {quota.max_trials}: this key may ask for no more"}
        )
    try:
        return await submission.submit(viewer, new)
    except errors.InvalidRequest as error:
        message = str(error)
        if await anyio.to_thread.run_sync(_refuses_all, viewer, new.body.target):
            raise _Refused({"target": message}) from error
        field = _about(sources, message)
        raise _Refused({field: message} if field else {}, "" if field else message) from error
    except (errors.QuotaExceeded, errors.Conflict, submission.Busy) as error:
        raise _Refused({}, str(error)) from error


def _refuses_all(viewer: auth.Caller, target: str) -> bool:
    """Whether the target is at fault: it refuses what every device can run."""
    try:
        viewer.services.parser.parse(_PROBE, target)
    except errors.InvalidRequest:
        return True
    return False


def _about(sources: list[str], message: str) -> str:
    """The field that a message speaks of first; empty if it speaks of none."""
    if len(sources) == 1:
        return sources[0]
    places = {
        match.start(): name
        for name in sources
        if (match := re.search(rf"\b{re.escape(name.removeprefix(job_form.PARAM))}\b", message))
    }
    return places[min(places)] if places else ""


def _page(viewer: render.LoggedIn, filled: _Form) -> fastapi.Response:
    operators = viewer.services.parser.operators()
    with viewer.read() as tx:
        tuners = store_tuners.every(tx, viewer.services.settings.stale_s)
    quota = actions.quota(viewer)
    return viewer.page(
        "submit.html",
        422 if filled.wrong or filled.problem else 200,
        source=filled.source,
        op=filled.op,
        operators=sorted(operators),
        about=operators[filled.op].get("description", ""),
        fields=job_form.of_schema(operators[filled.op]),
        texts=filled.texts,
        template_name=filled.template,
        wrong=filled.wrong,
        problem=filled.problem,
        targets=sorted({*TARGETS, *_alive_kinds(tuners)}),
        n_alive=sum(tuner.is_alive for tuner in tuners),
        strategies=strategies.NAMES,
        default_trials=submission.DEFAULT_TRIALS,
        max_trials=quota.max_trials,
        max_upload_bytes=actions.upload_limit(viewer),
        form_id=secrets.token_urlsafe(16),
        can_submit=viewer.can("submit"),
    )


def _alive_kinds(tuners: Any) -> set[str]:
    """The kinds of the devices that are there."""
    alive = (device for tuner in tuners if tuner.is_alive for device in tuner.devices)
    return {str(device["kind"]) for device in alive if "kind" in device}
