"""`/v1/jobs/{id}/log`: what happened to a job, as text: states, stages, warnings, errors, times.

One line an event, for people and for `grep`:

    2026-11-21T22:53:28Z 3 warning message="the clock of the CPU is not fixed"
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import fastapi
from starlette import responses

from server.store import events, jobs, rows
from server.web import auth, request_bodies

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["events"])

#: Events of one transaction.
BATCH = 500

#: Of which there is one for each candidate or round: only with `all`.
_FREQUENT = frozenset({events.Type.TRIAL, events.Type.ROUND, events.Type.CHECKPOINT})


@router.get(
    "/log",
    response_class=responses.StreamingResponse,
    responses={200: {"content": {"text/plain": {}}}},
)
def log(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    all_: Annotated[
        bool, fastapi.Query(alias="all", description="also each trial, round and checkpoint")
    ] = False,
) -> fastapi.Response:
    """The log of a job as text, oldest first; where the time went at its end."""
    with caller.read() as tx:
        job = jobs.get(tx, job_id)
    kinds = tuple(kind for kind in events.Type if all_ or kind not in _FREQUENT)
    return responses.StreamingResponse(
        _lines(caller, job, kinds), media_type="text/plain; charset=utf-8"
    )


def _lines(caller: auth.Caller, job: rows.Job, kinds: tuple[events.Type, ...]) -> Iterator[str]:
    seq = 0
    while True:
        with caller.read() as tx:
            page = events.after(tx, job.id, seq, BATCH, kinds)
        yield "".join(_line(event) for event in page)
        if len(page) < BATCH:
            break
        seq = page[-1].seq
    times = {name: value for name, value in (job.breakdown or {}).items() if value}
    if times:
        yield f"# where the time went: {_pairs(times)}\n"


def _line(event: rows.Event) -> str:
    move = {"from": event.from_state, "to": event.to_state}
    at = event.at.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{at} {event.seq} {event.type} {_pairs({**move, **event.payload})}".rstrip() + "\n"


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={_value(value)}" for name, value in values.items() if value is not None
    )


def _value(value: Any) -> str:
    """One word, or JSON: no text of a program can begin a line of its own."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.isalnum() and value.isascii():
        return value
    return json.dumps(value)
