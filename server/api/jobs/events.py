"""`/v1/jobs/{id}/events`: the log of a job, by asking for what is new or as a stream.

The stream is Server-Sent Events: `id` is the sequence number, `event` the type, `data` the event
as JSON. A client that comes back with `Last-Event-ID` misses nothing. When the job has ended and
all events are sent, an event `end` comes and the stream closes. It also closes after
`MAX_STREAM_S`, so that keys are checked again; clients just reconnect.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import anyio.to_thread
import fastapi
from fastapi import sse
from starlette import responses

from server import errors, states
from server.cache import recent_events
from server.store import events, jobs, rows
from server.web import auth, dependencies, request_bodies, shared_response
from server.web import response_bodies as response_models

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/events", tags=["events"])

#: A comment keeps proxies from closing a quiet stream.
PING_S = 15.0
MAX_STREAM_S = 600.0
#: Events of one read of the database.
BATCH = 200

_AfterSeq = Annotated[
    int,
    fastapi.Query(ge=0, le=request_bodies.MAX_INT, description="the newest event that is known"),
]
_Types = Annotated[
    list[events.Type] | None, fastapi.Query(alias="type", description="only these types")
]


@router.get("", response_model=response_models.Events)
async def after(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    after_seq: _AfterSeq = 0,
    type_: _Types = None,
    limit: request_bodies.Limit = 500,
) -> fastapi.Response:
    """Events after a sequence number, oldest first."""
    types = tuple(type_ or ())
    window = await services.recent_events.of(job_id)
    new = window.after(after_seq, limit, types)
    if new is None:
        new = await anyio.to_thread.run_sync(_older, services, job_id, after_seq, limit, types)
    last_seq = new[-1].seq if new else after_seq
    items = b",".join(event.encoded for event in new)
    return fastapi.Response(
        b'{"items":[%b],"last_seq":%d}' % (items, last_seq), media_type=shared_response.JSON
    )


def encode(event: rows.Event) -> bytes:
    """An event as clients get it: JSON."""
    return response_models.Event.model_validate(event).model_dump_json().encode()


def _older(
    services: dependencies.Services,
    job_id: int,
    seq: int,
    limit: int,
    types: Sequence[events.Type],
) -> list[recent_events.EncodedEvent]:
    with services.db.read() as tx:
        older = events.after(tx, job_id, seq, limit, types)
    return [recent_events.EncodedEvent(event.seq, event.type, encode(event)) for event in older]


@router.get("/stream", response_class=responses.StreamingResponse,
            responses={200: {"content": {"text/event-stream": {}}}})  # fmt: skip
async def stream(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    after_seq: _AfterSeq = 0,
    last_event_id: Annotated[str | None, fastapi.Header(max_length=20)] = None,
) -> fastapi.Response:
    """Events as they come."""
    seq = after_seq
    if last_event_id is not None:
        if not last_event_id.isascii() or not last_event_id.isdecimal():
            raise errors.InvalidRequest("Last-Event-ID must be a sequence number")
        seq = min(int(last_event_id), request_bodies.MAX_INT)
    await anyio.to_thread.run_sync(_read, services, job_id, seq)  # 404 before the stream begins
    return responses.StreamingResponse(
        _events(services, job_id, seq),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


def _read(services: dependencies.Services, job_id: int, seq: int) -> dependencies.StreamChunk:
    with services.db.read() as tx:
        state, new = jobs.get(tx, job_id).state, events.after(tx, job_id, seq, BATCH)
    last_seq = new[-1].seq if new else seq
    return dependencies.StreamChunk(state, last_seq, b"".join(_encoded(event) for event in new))


async def _read_and_invalidate(
    services: dependencies.Services, job_id: int, seq: int
) -> dependencies.StreamChunk:
    chunk = await anyio.to_thread.run_sync(_read, services, job_id, seq)
    if chunk.last_seq > seq or chunk.state in states.ENDED:
        services.response_cache.invalidate(job_id)
    return chunk


def _encoded(event: rows.Event) -> bytes:
    data = encode(event).decode()
    return sse.format_sse_event(event=event.type, data_str=data, id=str(event.seq))


async def _events(services: dependencies.Services, job_id: int, seq: int) -> AsyncIterator[bytes]:
    until_s = time.monotonic() + MAX_STREAM_S
    while time.monotonic() < until_s and not services.notifier.is_closed:
        read = functools.partial(_read_and_invalidate, services, job_id, seq)
        try:
            chunk = await services.stream_chunks.get((job_id, seq), read)
        except errors.NotFound:  # deleted meanwhile
            yield sse.format_sse_event(event="end", data_str='{"state": null}')
            return
        if chunk.last_seq > seq:
            seq = chunk.last_seq
            yield chunk.encoded
            continue
        if chunk.state in states.ENDED:
            yield sse.format_sse_event(event="end", data_str=json.dumps({"state": chunk.state}))
            return
        if not await services.notifier.newer(job_id, seq, PING_S):
            yield sse.KEEPALIVE_COMMENT
