"""Responses that all clients polling the same address share, read and encoded once a moment.

Only for what depends on the address alone, not on the caller: scopes, and whether it may see the
jobs, are checked before, for each request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable

import anyio.to_thread
import fastapi
import pydantic
from sqlalchemy import orm

from server.cache import response_cache
from server.web import auth, dependencies

JSON = "application/json"


async def respond(
    services: dependencies.Services,
    caller: auth.Caller,
    what: Hashable,
    job_ids: tuple[int, ...],
    read: Callable[[orm.Session], pydantic.BaseModel],
) -> fastapi.Response:
    """What `read` returns of some jobs, or returned a moment ago for the same.

    Args:
        what: equal for requests whose responses say the same.

    Raises:
        NotFound: the caller sees no such job, or as `read` does.
    """
    visible = await services.visible_jobs.check(caller.sees, job_ids)
    query = response_cache.Query(what, visible)
    encode = functools.partial(anyio.to_thread.run_sync, _read_encoded, caller, read)
    body = await services.response_cache.get(query, encode)
    return fastapi.Response(body, media_type=JSON)


def _read_encoded(caller: auth.Caller, read: Callable[[orm.Session], pydantic.BaseModel]) -> bytes:
    with caller.read() as tx:
        content = read(tx)
    return content.model_dump_json().encode()
