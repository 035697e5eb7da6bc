"""`/v1/events/stream`: the events of several jobs in one connection.

A browser opens six connections to a host at most, so its pages share one stream for all jobs that
they show (`server/dashboard/static/stream-worker.js`). The format is Server-Sent Events: messages
whose `data` is `{"job_id": ..., "event": {...}}`, and for each job one event `end` with `job_id`
and `state`, which is null for a job that is not there. After the last one the stream closes. A
client that comes back asks for what follows the newest events that it knows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

import fastapi
from fastapi import sse
from starlette import responses

from server import errors, states
from server.api.jobs import events as job_events
from server.store import rows
from server.web import auth, dependencies, request_bodies

router = fastapi.APIRouter(prefix="/v1/events", tags=["events"])

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


@router.get("/stream", response_class=responses.StreamingResponse, responses=job_events.STREAM)
async def stream(
    caller: auth.Reader, services: dependencies.ServicesDep, positions: _Positions
) -> fastapi.Response:
    """Events of several jobs as they come."""
    seqs = {}
    for position in positions:
        job_id, seq = map(int, position.split(":"))
        if max(job_id, seq) > request_bodies.MAX_INT:
            raise errors.InvalidRequest(f"query job: {position} is no job and sequence number")
        seqs[job_id] = seq
    return job_events.streaming(_merged(services, caller, seqs))


async def _followed(
    services: dependencies.Services, caller: auth.Caller, job_id: int, seq: int
) -> AsyncIterator[bytes]:
    """The stream of one of the jobs; it ends at once if the caller sees no such job."""
    try:
        (visible,) = await services.visible_jobs.check(caller.sees, [job_id])
    except errors.NotFound:
        yield _end(job_id, None)
        return
    async for piece in job_events.follow(services, caller, _SEVERAL, visible, seq):
        yield piece


async def _merged(
    services: dependencies.Services, caller: auth.Caller, seqs: Mapping[int, int]
) -> AsyncIterator[bytes]:
    """The streams of all jobs in the order of what happens."""
    followed = [_followed(services, caller, job_id, seq) for job_id, seq in seqs.items()]
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


def _event(job_id: int, event: rows.Event) -> bytes:
    data = f'{{"job_id":{job_id},"event":{job_events.encode(event).decode()}}}'
    return sse.format_sse_event(data_str=data)


def _end(job_id: int, state: states.State | None) -> bytes:
    data = json.dumps({"job_id": job_id, "state": state})
    return sse.format_sse_event(event="end", data_str=data)


_SEVERAL = job_events.Format(_event, _end)
