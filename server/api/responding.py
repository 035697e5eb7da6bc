"""How routes respond: encoded once for all clients that ask the same, in pages, as CSV cells."""

from __future__ import annotations

import csv
import datetime
import functools
import io
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import anyio.to_thread
import fastapi
import pydantic
from sqlalchemy import orm
from starlette import responses

from server import cache
from server.web import auth

JSON = "application/json"


def file_of(
    media_type: str, response_class: type[fastapi.Response] = responses.StreamingResponse
) -> dict[str, Any]:
    """For a route's declaration: it responds with a file of this type."""
    content: dict[str, Any] = {media_type: {}}
    return {"response_class": response_class, "responses": {200: {"content": content}}}


async def respond(
    caller: auth.Caller,
    what: Hashable,
    job_ids: tuple[int, ...],
    read: Callable[[orm.Session], pydantic.BaseModel],
) -> fastapi.Response:
    """What `read` returns of some jobs, or returned a moment ago for the same.

    Only for what depends on the address alone, not on the caller: scopes, and whether it may see
    the jobs, are checked before, for each request.

    Args:
        what: equal for requests whose responses say the same.

    Raises:
        NotFound: the caller sees no such job, or as `read` does.
    """
    visible = await caller.services.visible_jobs.check(caller.sees, job_ids)
    query = cache.Query(what, visible)
    encode = functools.partial(anyio.to_thread.run_sync, _read_encoded, caller, read)
    body = await caller.services.response_cache.get(query, encode)
    return fastapi.Response(body, media_type=JSON)


def _read_encoded(caller: auth.Caller, read: Callable[[orm.Session], pydantic.BaseModel]) -> bytes:
    with caller.read() as tx:
        content = read(tx)
    return content.model_dump_json().encode()


def link(request: fastapi.Request, response: fastapi.Response, after: int | None) -> None:
    """Name the next page, if there is one."""
    if after is not None:
        url = request.url.include_query_params(after=after)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Lines of a CSV file."""
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue()


#: A cell that begins like this is a formula to a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def cell(value: object) -> object:
    """A value for a cell: what would be a formula is a text that begins with `'`."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA):
        return f"'{value}"
    return value
