"""Responses that all clients polling the same address share, read and encoded once a moment.

Only for what depends on the address alone, not on the caller: scopes are checked before, for each
request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import anyio.to_thread
import fastapi
import pydantic
from sqlalchemy import orm

from server.cache import response_cache
from server.web import dependencies

JSON = "application/json"


async def respond(
    services: dependencies.Services,
    query: response_cache.Query,
    read: Callable[[orm.Session], pydantic.BaseModel],
) -> fastapi.Response:
    """What `read` returns, or returned a moment ago for the same query.

    Raises:
        NotFound: as `read` does.
    """
    encode = functools.partial(anyio.to_thread.run_sync, _read_encoded, services, read)
    body = await services.response_cache.get(query, encode)
    return fastapi.Response(body, media_type=JSON)


def _read_encoded(
    services: dependencies.Services, read: Callable[[orm.Session], pydantic.BaseModel]
) -> bytes:
    with services.db.read() as tx:
        content = read(tx)
    return content.model_dump_json().encode()
