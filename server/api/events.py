"""`/v1/jobs/{id}/events`: the log of a job, by asking for what is new or as a stream.

The stream is Server-Sent Events: `id` is the sequence number, `event` the type, `data` the event
as JSON. A client that comes back with `Last-Event-ID` misses nothing. When the job has ended and
all events are sent, an event `end` comes and the stream closes. It also closes after
`MAX_STREAM_S`, so that keys are checked again; clients just reconnect.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
import fastapi
from fastapi import sse
from starlette import responses

from server import cache, errors, states
from server.api import responding
from server.store import events, jobs, rows
from server.web import auth, dependencies, request_bodies, response_bodies

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


@router.get("", response_model=response_bodies.Events)
async def after(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    after_seq: _AfterSeq = 0,
    type_: _Types = None,
    limit: request_bodies.Limit = 500,
) -> fastapi.Response:
    """Events after a sequence number, oldest first."""
    types = tuple(type_ or ())
    (visible,) = await caller.services.visible_jobs.check(caller.sees, [job_id])
    window = await caller.services.recent_events.of(visible)
    new = window.after(after_seq, limit, types)
    if new is None:
        new = await anyio.to_thread.run_sync(_older, caller, job_id, after_seq, limit, types)
    last_seq = new[-1].seq if new else after_seq
    items = b",".join(event.encoded for event in new)
    return fastapi.Response(
        b'{"items":[%b],"last_seq":%d}' % (items, last_seq), media_type=responding.JSON
    )


def encode(event: rows.Event) -> bytes:
    """An event as clients get it: JSON."""
    return response_bodies.Event.model_validate(event).model_dump_json().encode()


def _older(
    caller: auth.Caller, job_id: int, seq: int, limit: int, types: Sequence[events.Type]
) -> list[cache.EncodedEvent]:
    with caller.read() as tx:
        older = events.after(tx, job_id, seq, limit, types)
    return [cache.EncodedEvent(event.seq, event.type, encode(event)) for event in older]


#: How the API's document describes a stream: what each of its events has.
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
                    "required": ["data"],
                }
            }
        }
    }
}


@router.get("/stream", response_class=responses.StreamingResponse, responses=STREAM)
async def stream(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    after_seq: _AfterSeq = 0,
    last_event_id: Annotated[str | None, fastapi.Header(max_length=20)] = None,
) -> fastapi.Response:
    """Events as they come."""
    seq = after_seq
    if last_event_id is not None:
        if not last_event_id.isascii() or not last_event_id.isdecimal():
            raise errors.InvalidRequest("Last-Event-ID must be a sequence number")
        seq = min(int(last_event_id), request_bodies.MAX_INT)
    # a 404 comes before the stream begins
    (visible,) = await caller.services.visible_jobs.check(caller.sees, [job_id])
    await anyio.to_thread.run_sync(_read, caller, True, visible, seq)
    return streaming(follow(caller, True, visible, seq))


def streaming(content: AsyncIterator[bytes]) -> fastapi.Response:
    """A response of Server-Sent Events."""
    return responses.StreamingResponse(
        content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def follow(
    caller: auth.Caller, is_alone: bool, job_id: cache.VisibleJob, seq: int
) -> AsyncIterator[bytes]:
    """The events of a job after a number, as they come, until it has ended and all are sent."""
    until_s = time.monotonic() + MAX_STREAM_S
    while time.monotonic() < until_s and not caller.services.notifier.is_closed:
        read = functools.partial(_read_and_invalidate, caller, is_alone, job_id, seq)
        try:
            chunk = await caller.services.stream_chunks.get((is_alone, job_id, seq), read)
        except errors.NotFound:  # deleted meanwhile
            yield _end(job_id, None, is_alone)
            return
        if chunk.last_seq > seq:
            seq = chunk.last_seq
            yield chunk.encoded
            continue
        if chunk.state in states.ENDED:
            yield _end(job_id, chunk.state, is_alone)
            return
        if not await caller.services.notifier.newer(job_id, seq, PING_S):
            yield sse.KEEPALIVE_COMMENT


def _read(caller: auth.Caller, is_alone: bool, job_id: int, seq: int) -> dependencies.StreamChunk:
    with caller.read() as tx:
        state, new = jobs.get(tx, job_id).state, events.after(tx, job_id, seq, BATCH)
    last_seq = new[-1].seq if new else seq
    encoded = b"".join(_event(job_id, event, is_alone) for event in new)
    return dependencies.StreamChunk(state, last_seq, encoded)


async def _read_and_invalidate(
    caller: auth.Caller, is_alone: bool, job_id: int, seq: int
) -> dependencies.StreamChunk:
    chunk = await anyio.to_thread.run_sync(_read, caller, is_alone, job_id, seq)
    if chunk.last_seq > seq or chunk.state in states.ENDED:
        caller.services.response_cache.invalidate(job_id)
    return chunk


def _event(job_id: int, event: rows.Event, is_alone: bool) -> bytes:
    """An event of a stream of one job, or of a stream of several."""
    data = encode(event).decode()
    if is_alone:
        return sse.format_sse_event(event=event.type, data_str=data, id=str(event.seq))
    return sse.format_sse_event(data_str=f'{{"job_id":{job_id},"event":{data}}}')


def _end(job_id: int, state: states.State | None, is_alone: bool) -> bytes:
    """The end of a job; without a state it was deleted."""
    data = {"state": state} if is_alone else {"job_id": job_id, "state": state}
    return sse.format_sse_event(event="end", data_str=json.dumps(data))


several_router = fastapi.APIRouter(prefix="/v1/events", tags=["events"])

#: Jobs of one stream.
MAX_JOBS = 64

_Position = Annotated[str, fastapi.Query(pattern=r"^[0-9]{1,10}:[0-9]{1,10}$")]
_Positions = Annotated[
    list[_Position],
    fastapi.Query(
        alias="job",
        min_length=1,
        max_length=MAX_JOBS,
        examples=[["7:0", "9:120"]],
        description="a job and its newest event that is known",
    ),
]


@several_router.get(
    "/stream", response_class=responses.StreamingResponse, responses=STREAM, name="stream"
)
async def stream_several(caller: auth.Reader, positions: _Positions) -> fastapi.Response:
    """Events of several jobs as they come."""
    seqs = {}
    for position in positions:
        job_id, seq = map(int, position.split(":"))
        if max(job_id, seq) > request_bodies.MAX_INT:
            raise errors.InvalidRequest(f"query job: {position} is no job and sequence number")
        seqs[job_id] = seq
    return streaming(_merged(caller, seqs))


async def _followed(caller: auth.Caller, job_id: int, seq: int) -> AsyncIterator[bytes]:
    """The stream of one of the jobs; it ends at once if the caller sees no such job."""
    try:
        (visible,) = await caller.services.visible_jobs.check(caller.sees, [job_id])
    except errors.NotFound:
        yield _end(job_id, None, False)
        return
    async for piece in follow(caller, False, visible, seq):
        yield piece


async def _merged(caller: auth.Caller, seqs: Mapping[int, int]) -> AsyncIterator[bytes]:
    """The streams of all jobs in the order of what happens."""
    followed = [_followed(caller, job_id, seq) for job_id, seq in seqs.items()]
    waiting = {asyncio.ensure_future(anext(each, None)): each for each in followed}
    try:
        yield sse.KEEPALIVE_COMMENT  # the client learns that it is connected
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                each, piece = waiting.pop(task), task.result()
                if piece is not None:
                    waiting[asyncio.ensure_future(anext(each, None))] = each
                    yield piece
    finally:
        for task in waiting:
            task.cancel()
