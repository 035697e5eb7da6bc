"""Answers that all who poll the same share: read and encoded once a moment.

Only for what depends on the address alone, not on who asks: scopes are checked before, by request.
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


async def answer(
    services: dependencies.Services,
    asked: response_cache.Asked,
    read: Callable[[orm.Session], pydantic.BaseModel],
) -> fastapi.Response:
    """What `read` finds, or found a moment ago for another who asked the same.

    Raises:
        NotFound: as `read` does.
    """
    look = functools.partial(anyio.to_thread.run_sync, _look, services, read)
    return fastapi.Response(await services.answers.get(asked, look), media_type=JSON)


def _look(
    services: dependencies.Services, read: Callable[[orm.Session], pydantic.BaseModel]
) -> bytes:
    with services.db.read() as tx:
        found = read(tx)
    return found.model_dump_json().encode()
