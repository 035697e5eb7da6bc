"""Workloads come in: read to a file under a limit, parsed in a limited child, stored.

Order of `submit`: an earlier request with the same idempotency key answers at once; then the
quota is looked at, the workload is parsed, its file stored, and the job made with its row. A
workload that is refused leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import tempfile
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import fastapi
import pydantic
from fastapi import exceptions
from starlette import datastructures, formparsers

from server import errors
from server.parsing import parser as parsing
from server.store import artifacts, jobs
from server.web import auth, dependencies, requests

#: Trials a task when a job sets neither trials nor seconds.
DEFAULT_TRIALS = 64

#: Multipart heads and the field `job` may take as much on top of the file.
FORM_BYTES = 1 << 20

#: Requests that may wait for their turn to be parsed.
MAX_WAITING = 32


class Busy(errors.ServiceError):
    """Too many workloads wait to be read: try again."""

    status = 503


@dataclasses.dataclass(frozen=True, slots=True)
class Upload:
    """A received file and what is asked of it; the file is removed with the request."""

    ask: requests.UploadedJob
    name: str
    path: pathlib.Path
    sha256: str
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One submission: what to parse, what to remember, who asks."""

    ask: requests.Settings
    workload: parsing.Workload
    stored: dict[str, Any]
    repeat: jobs.Repeat | None
    upload: Upload | None = None


def order_of(ask: requests.NewJob, idempotency_key: str | None) -> Order:
    """The order of a JSON body."""
    asked, digest = ask.workload, _digest(ask, "")
    repeat = None if idempotency_key is None else _repeat(idempotency_key, digest)
    if isinstance(asked, requests.OperatorWorkload):
        operator = parsing.Workload(kind="operator", name=asked.name, params=asked.params)
        return Order(ask, operator, {"params": asked.params}, repeat)
    content = asked.program.encode()
    program = parsing.Workload(kind="tir", name=asked.name, content=content)
    stored = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    return Order(ask, program, stored, repeat)


def order_of_upload(upload: Upload, idempotency_key: str | None) -> Order:
    """The order of a received file."""
    ask, digest = upload.ask, _digest(upload.ask, upload.sha256)
    repeat = None if idempotency_key is None else _repeat(idempotency_key, digest)
    workload = parsing.Workload(kind=ask.kind, name=upload.name, shapes=ask.shapes)
    stored = {
        "file": upload.name,
        "sha256": upload.sha256,
        "size_bytes": upload.size_bytes,
        "shapes": ask.shapes,
    }
    return Order(ask, workload, stored, repeat, upload)


async def submit(services: dependencies.Services, caller: auth.Caller, order: Order) -> jobs.Made:
    """Make the job of an order, or find the one it made before.

    Raises:
        InvalidRequest, Conflict, QuotaExceeded
        Busy: too many requests wait.
    """
    earlier = await anyio.to_thread.run_sync(_before, services, caller, order)
    if earlier is not None:
        return earlier
    limiter = services.parse_limiter
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise Busy()
    work = functools.partial(_parse_and_make, services, caller, order)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


@contextlib.asynccontextmanager
async def receive(request: fastapi.Request, limit_bytes: int) -> AsyncIterator[Upload]:
    """The fields `job` (JSON, optional) and `file` of a multipart body, read under a limit.

    Raises:
        TooLarge: more than `limit_bytes` were announced or came.
        InvalidRequest: not such a form.
    """
    refuse_announced(request, limit_bytes)
    form = await _form(request, limit_bytes)
    try:
        file = form.get("file")
        if not isinstance(file, datastructures.UploadFile) or form.getlist("file") != [file]:
            raise errors.InvalidRequest("the form needs one field `file` with a file")
        if (file.size or 0) > limit_bytes:
            raise _too_large(limit_bytes)
        ask = _ask(form.get("job", "{}"))
        name = _name(file.filename or "")
        with tempfile.NamedTemporaryFile(prefix="felix-upload-") as copy:
            sha256, size = await anyio.to_thread.run_sync(_copy, file.file, copy)
            if size == 0:
                raise errors.InvalidRequest("the file is empty")
            yield Upload(ask, name, pathlib.Path(copy.name), sha256, size)
    finally:
        await form.close()


def refuse_announced(request: fastapi.Request, limit_bytes: int) -> None:
    """Refuse a body whose announced length is too large, before any of it is read.

    Raises:
        TooLarge
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > limit_bytes + FORM_BYTES:
        raise _too_large(limit_bytes)


def refuse_long(ask: requests.NewJob, limit_bytes: int) -> None:
    """Refuse a program that is longer than a file may be.

    Raises:
        TooLarge
    """
    asked = ask.workload
    if isinstance(asked, requests.TirWorkload) and len(asked.program.encode()) > limit_bytes:
        raise _too_large(limit_bytes)


async def _form(request: fastapi.Request, limit_bytes: int) -> datastructures.FormData:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise fastapi.HTTPException(415, "send multipart/form-data with the field `file`")
    stream = _limited(request, limit_bytes)
    parser = formparsers.MultiPartParser(request.headers, stream, max_files=1, max_fields=8)
    try:
        return await parser.parse()
    except formparsers.MultiPartException as error:
        raise errors.InvalidRequest(f"the form is malformed: {error.message}") from error


async def _limited(request: fastapi.Request, limit_bytes: int) -> Any:
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limit_bytes + FORM_BYTES:
            raise _too_large(limit_bytes)
        yield chunk


def _too_large(limit_bytes: int) -> errors.TooLarge:
    return errors.TooLarge(f"this key may upload {limit_bytes} bytes at most")


def _ask(text: Any) -> requests.UploadedJob:
    try:
        return requests.UploadedJob.model_validate_json(text if isinstance(text, str) else "")
    except pydantic.ValidationError as error:
        found = [{**each, "loc": ("body", "job", *each["loc"])} for each in error.errors()]
        raise exceptions.RequestValidationError(found) from error


def _name(text: str) -> str:
    try:
        return pydantic.TypeAdapter(requests.FileName).validate_python(text)
    except pydantic.ValidationError as error:
        found = [{**each, "loc": ("body", "file", "filename")} for each in error.errors()]
        raise exceptions.RequestValidationError(found) from error


def _copy(source: BinaryIO, to: Any) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    source.seek(0)
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
        to.write(chunk)
    to.flush()
    return digest.hexdigest(), size


def _digest(ask: pydantic.BaseModel, content_sha256: str) -> str:
    text = json.dumps([ask.model_dump(mode="json"), content_sha256], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _repeat(key: str, digest: str) -> jobs.Repeat:
    return jobs.Repeat(key=key, request_sha256=digest)


def _before(
    services: dependencies.Services, caller: auth.Caller, order: Order
) -> jobs.Made | None:
    """What is decided without parsing."""
    with services.db.read() as tx:
        if order.repeat is not None:
            earlier = jobs.repeated(tx, caller.key.id, order.repeat)
            if earlier is not None:
                return jobs.Made(earlier, False)
        jobs.check_quota(tx, order.ask.trials, caller.key.id, auth.quota(caller, services))
    return None


def _parse_and_make(
    services: dependencies.Services, caller: auth.Caller, order: Order
) -> jobs.Made:
    workload, upload = order.workload, order.upload
    if upload is not None:
        workload = dataclasses.replace(workload, content=upload.path.read_bytes())
    parsed = services.parser.parse(workload, order.ask.target)
    quota = auth.quota(caller, services)
    new = _new_job(order, parsed, quota)
    if upload is not None:
        services.blobs.put(upload.path)
    with services.db.write() as tx:
        made = jobs.create(tx, new, caller.key.id, order.repeat, quota)
        if made.is_new:
            if upload is not None:
                artifacts.attach(tx, made.job.id, _input(upload))
            caller.audit(tx, "job.create", f"job {made.job.id}", op=new.op, target=new.target)
            made = jobs.Made(jobs.get(tx, made.job.id), True)
    return made


def _new_job(order: Order, parsed: parsing.Parsed, quota: jobs.Quota) -> jobs.NewJob:
    ask, workload = order.ask, order.workload
    trials = ask.trials
    if trials is None:  # without a budget of trials the quota is one
        default = DEFAULT_TRIALS * len(parsed.tasks)
        trials = quota.max_trials if ask.seconds else min(default, quota.max_trials)
    stored = dict(order.stored)
    if parsed.notes:
        stored["left_out"] = list(parsed.notes)
    only = parsed.tasks[0].name if len(parsed.tasks) == 1 else workload.name
    return jobs.NewJob(
        name=ask.name or only,
        kind=workload.kind,
        op=workload.name,
        workload=stored,
        target=ask.target,
        target_key=parsed.target_key,
        tasks=parsed.tasks,
        trials=trials,
        seconds=ask.seconds,
        seed=ask.seed,
        strategy=ask.strategy,
        options=ask.given_options,
        priority=ask.priority,
        note=ask.note,
        tags=tuple(ask.tags),
    )


def _input(upload: Upload) -> artifacts.NewArtifact:
    """The uploaded file as an artifact: it is downloaded and deleted like the others."""
    return artifacts.NewArtifact(
        name=f"input-{upload.name}",
        kind="input",
        media_type="application/octet-stream",
        sha256=upload.sha256,
        size_bytes=upload.size_bytes,
    )
