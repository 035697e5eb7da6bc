"""Multipart uploads: one file and its job's description, read to a scratch file under a limit."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import fastapi
import pydantic
from starlette import datastructures, formparsers

from server import errors
from server.store import blobs
from server.web import problems, request_bodies

#: Multipart heads and the field `job` may take as much on top of the file.
FORM_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Upload:
    """A received file and the job's description; the file is removed with the request."""

    body: request_bodies.UploadedJob
    name: str
    path: pathlib.Path
    sha256: str
    size_bytes: int


def form(media_type: str, example: str | None = None, **fields: Any) -> dict[str, Any]:
    """The declaration of a form with a file in the OpenAPI document, for a route's extras.

    Args:
        media_type: of the file.
        example: a name of the file.
        fields: schemas of other fields.
    """
    properties = {"file": {"type": "string", "contentMediaType": media_type}, **fields}
    schema: dict[str, Any] = {"type": "object", "required": ["file"], "properties": properties}
    if example is not None:
        schema["examples"] = [{"file": example}]
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }


@contextlib.asynccontextmanager
async def receive(request: fastapi.Request, limit_bytes: int) -> AsyncIterator[Upload]:
    """The fields `job` (JSON, optional) and `file` of a multipart body, read under a limit.

    Raises:
        TooLarge: more than `limit_bytes` were announced or came.
        InvalidRequest: not such a form.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > limit_bytes + FORM_BYTES:
        raise too_large(limit_bytes)  # before any of it is read
    form = await _form(request, limit_bytes)
    try:
        file = form.get("file")
        if not isinstance(file, datastructures.UploadFile) or form.getlist("file") != [file]:
            raise errors.InvalidRequest("the form needs one field `file` with a file")
        async with stored(file, _body(form.get("job", "{}")), limit_bytes) as upload:
            yield upload
    finally:
        await form.close()


@contextlib.asynccontextmanager
async def stored(
    file: datastructures.UploadFile, body: request_bodies.UploadedJob, limit_bytes: int
) -> AsyncIterator[Upload]:
    """A received file of a form, in a scratch file.

    Raises:
        TooLarge
        InvalidRequest: it is empty, or its name is none.
    """
    if (file.size or 0) > limit_bytes:
        raise too_large(limit_bytes)
    name = _name(file.filename or "")
    with tempfile.NamedTemporaryFile(prefix="felix-upload-") as copy:
        await file.seek(0)
        content = await anyio.to_thread.run_sync(blobs.copy, file.file, copy)
        copy.flush()
        if content.size_bytes == 0:
            raise errors.InvalidRequest("the file is empty")
        yield Upload(body, name, pathlib.Path(copy.name), content.sha256, content.size_bytes)


def too_large(limit_bytes: int) -> errors.TooLarge:
    """The error of a key that may upload so many bytes."""
    return errors.TooLarge(f"this key may upload {limit_bytes} bytes at most")


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
            raise too_large(limit_bytes)
        yield chunk


def _body(text: Any) -> request_bodies.UploadedJob:
    try:
        return request_bodies.UploadedJob.model_validate_json(
            text if isinstance(text, str) else ""
        )
    except pydantic.ValidationError as error:
        raise problems.malformed(error, "job") from error


def _name(text: str) -> str:
    try:
        return pydantic.TypeAdapter(request_bodies.FileName).validate_python(text)
    except pydantic.ValidationError as error:
        raise problems.malformed(error, "file", "filename") from error
