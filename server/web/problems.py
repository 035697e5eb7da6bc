"""Every error of the API as problem details (RFC 9457): one body, one media type.

    {"type": "urn:felix:problem:quota-exceeded", "title": "Quota exceeded", "status": 429,
     "detail": "this key has 20 jobs ...", "instance": "/v1/jobs", "request_id": "..."}

Malformed requests also carry `errors`: where (a JSON pointer or a parameter) and what. What a
client sent is never echoed.
"""

from __future__ import annotations

import http
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fastapi
import pydantic
import sqlalchemy as sa
from fastapi import exceptions
from starlette import exceptions as starlette_exceptions
from starlette import responses

from felix import errors as engine_errors
from server import errors, logs

_log = logs.of(__name__)

MEDIA_TYPE = "application/problem+json"

#: Seconds after which a client may try again when the service is busy.
RETRY_AFTER_S = 2

#: Errors that are responses wherever they are raised.
EXPECTED = (engine_errors.FelixError, sa.exc.OperationalError, sa.exc.TimeoutError)

#: In OpenAPI, of all routes.
SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:felix:problem:not-found"]},
        "title": {"type": "string", "examples": ["Not found"]},
        "status": {"type": "integer", "examples": [404]},
        "detail": {"type": "string", "examples": ["there is no job 7"]},
        "instance": {"type": "string", "examples": ["/v1/jobs/7"]},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "where": {"type": "string", "examples": ["#/trials"]},
                    "message": {"type": "string"},
                },
            },
        },
    },
}


class Problem(responses.JSONResponse):
    """A response with problem details."""

    media_type = MEDIA_TYPE


def problem(
    request: fastapi.Request,
    status: int,
    slug: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mapping[str, str]] | None = None,
) -> Problem:
    """A response about what went wrong with a request."""
    content = _content(status, slug, detail) | {
        "instance": _printable(request.url.path),
        "request_id": request.scope.get("felix_request_id", ""),
    }
    if errors is not None:
        content["errors"] = list(errors)
    return Problem(content, status, dict(headers or {}))


def status_of(error: engine_errors.FelixError) -> int:
    """The status of the response to a refusal."""
    return error.status if isinstance(error, errors.ServiceError) else 422


def content_of(error: engine_errors.FelixError) -> dict[str, Any]:
    """A refusal as a part of a response: type, title, status and detail."""
    return _content(status_of(error), _slug(type(error).__name__), str(error))


def content_of_invalid(error: pydantic.ValidationError) -> dict[str, Any]:
    """A malformed part of a request as a part of a response, with the place of each mistake."""
    invalid = _mistakes(malformed(error))
    return _content(422, "invalid-request", _first(invalid)) | {"errors": invalid}


def malformed(error: pydantic.ValidationError, *place: str) -> exceptions.RequestValidationError:
    """The error of a request whose body is malformed at a place, as FastAPI has it."""
    located = [{**each, "loc": ("body", *place, *each["loc"])} for each in error.errors()]
    return exceptions.RequestValidationError(located)


def _mistakes(error: exceptions.RequestValidationError) -> list[dict[str, str]]:
    return [
        {"where": _where(each["loc"]), "message": _printable(str(each["msg"]))}
        for each in error.errors()[:50]
    ]


def _first(invalid: Sequence[Mapping[str, str]]) -> str:
    first = invalid[0] if invalid else {"where": "#", "message": "malformed"}
    return f"{first['where']}: {first['message']}"


def _content(status: int, slug: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"urn:felix:problem:{slug}",
        "title": slug.replace("-", " ").capitalize(),
        "status": status,
        "detail": _printable(detail),
    }


def install(app: fastapi.FastAPI) -> None:
    """Make an application report all errors this way."""
    app.add_exception_handler(exceptions.RequestValidationError, _on_invalid)
    app.add_exception_handler(starlette_exceptions.HTTPException, _on_http)
    for kind in EXPECTED:
        app.add_exception_handler(kind, of_expected)


async def of_expected(request: fastapi.Request, error: Exception) -> Problem:
    """The response to an error that is one of `EXPECTED`."""
    if not isinstance(error, engine_errors.FelixError):
        _log.error("the database does not answer: %s", error, action="database_error")
        detail = "the database does not answer: try again"
        again = {"Retry-After": str(RETRY_AFTER_S)}
        return problem(request, 503, "unavailable", detail, again)
    status, headers = status_of(error), {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = str(getattr(error, "retry_after_s", RETRY_AFTER_S))
    if status >= 500:
        _log.error("%s", error, action="service_error")
    return problem(request, status, _slug(type(error).__name__), str(error), headers)


def of_error(request: fastapi.Request, error: BaseException) -> Problem:
    """The response to an unexpected error, whose text stays in the log."""
    _log.error(
        "unhandled error in %s %s",
        request.method,
        _printable(request.url.path),
        exc_info=error,
        action="unhandled",
        request=request.scope.get("felix_request_id", ""),
    )
    detail = "the service made a mistake; its log has the details under this request_id"
    return problem(request, 500, "internal-error", detail)


async def _on_invalid(request: fastapi.Request, error: Exception) -> Problem:
    assert isinstance(error, exceptions.RequestValidationError)
    invalid = _mistakes(error)
    return problem(request, 422, "invalid-request", _first(invalid), errors=invalid)


async def _on_http(request: fastapi.Request, error: Exception) -> Problem:
    assert isinstance(error, starlette_exceptions.HTTPException)
    phrase = http.HTTPStatus(error.status_code).phrase
    slug = _slug(re.sub(r"[^A-Za-z]+", "", phrase.title()))
    if error.status_code == 404 and error.detail == phrase:
        detail = "there is nothing at this address"
    else:
        detail = str(error.detail or phrase)
    return problem(request, error.status_code, slug, detail, error.headers)


def _slug(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _where(location: Sequence[Any]) -> str:
    """`#/trials` in a body, `query trials` elsewhere."""
    place, *rest = location
    path = "/".join(str(part) for part in rest)
    return _printable(f"#/{path}" if place == "body" else f"{place} {path}")


def _printable(text: str) -> str:
    whole: str = json.loads(json.dumps(text[:2000]))
    return whole.encode("utf-8", "replace").decode()
