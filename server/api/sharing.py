"""Answers that all who poll the same share: read and encoded once a moment.

Only for what depends on the address alone, not on who asks: scopes are checked before, by request.
Reads the store; feeds routers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import anyio.to_thread
import fastapi
import pydantic
from sqlalchemy import orm

from server import answers
from server.api import context

JSON = "application/json"


async def answer(
    services: context.Services,
    asked: answers.Asked,
    read: Callable[[orm.Session], pydantic.BaseModel],
) -> fastapi.Response:
    """What `read` finds, or found a moment ago for another who asked the same.

    Raises:
        NotFound: as `read` does.
    """
    look = functools.partial(anyio.to_thread.run_sync, _look, services, read)
    return fastapi.Response(await services.answers.get(asked, look), media_type=JSON)


def _look(services: context.Services, read: Callable[[orm.Session], pydantic.BaseModel]) -> bytes:
    with services.db.read() as tx:
        found = read(tx)
    return found.model_dump_json().encode()
