"""`/v1/jobs/{id}/trials`: pages, one, and all of them as CSV or JSON lines.

Exports are streamed page by page, each in a transaction of its own: a slow reader occupies no
connection, and trials are only ever appended.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import fastapi
from starlette import responses

from server.api import responding
from server.store import jobs, rows, trials
from server.web import auth, decisions, dependencies, request_bodies
from server.web import response_bodies as response_models

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["trials"])

#: Trials, the tasks of their job, and whether they are the first, as text.
_Lines = Callable[[tuple[rows.Trial, ...], Sequence[rows.Task], bool], str]

_Error = Literal["build", "launch", "timeout", "wrong_result", "infrastructure"]

#: Columns of the CSV file, in order.
COLUMNS = (
    "number", "task", "round", "sketch_index", "latency_us", "predicted_us", "best_us", "is_best",
    "error", "message", "spread", "elapsed_s", "measured_s", "build_s", "run_s", "device",
    "measured_at", "decisions",
)  # fmt: skip


async def _chosen(
    task: request_bodies.TaskFilter = None,
    ok: Annotated[bool | None, fastapi.Query(description="measured, or failed")] = None,
    error: Annotated[_Error | None, fastapi.Query(description="only this error class")] = None,
    round: Annotated[int | None, fastapi.Query(ge=0, le=request_bodies.MAX_INT)] = None,
    best_only: Annotated[bool, fastapi.Query(description="only improvements")] = False,
) -> trials.Filter:
    return trials.Filter(task=task, ok=ok, error=error, round=round, best_only=best_only)


_Filter = Annotated[trials.Filter, fastapi.Depends(_chosen)]


@router.get("/trials")
def page(
    request: fastapi.Request,
    response: fastapi.Response,
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    chosen: _Filter,
    limit: request_bodies.Limit = 100,
    after: request_bodies.After = None,
) -> response_models.Page[response_models.Trial]:
    """Trials by number."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        selected = trials.page(tx, job_id, chosen, limit, after or 0)
        tasks = jobs.tasks(tx, job_id)
    responding.link(request, response, selected.next)
    items = [decisions.body(tasks, trial) for trial in selected.trials]
    return response_models.Page(items=items, next=selected.next)


@router.get("/trials/{number}")
def get(
    job_id: request_bodies.Id,
    number: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
) -> response_models.Trial:
    """One trial."""
    with caller.read() as tx:
        trial = trials.get(tx, job_id, number)
        return decisions.body(jobs.tasks(tx, job_id), trial)


@router.get(
    "/trials.csv",
    response_class=responses.StreamingResponse,
    responses={200: {"content": {"text/csv": {}}}},
)
def as_csv(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    chosen: _Filter,
) -> fastapi.Response:
    """All trials as CSV, streamed."""
    return _stream(caller, job_id, chosen, "csv", "text/csv; charset=utf-8", _csv_lines)


@router.get(
    "/trials.jsonl",
    response_class=responses.StreamingResponse,
    responses={200: {"content": {"application/jsonl": {}}}},
)
def as_jsonl(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    chosen: _Filter,
) -> fastapi.Response:
    """All trials as JSON lines, streamed."""
    return _stream(caller, job_id, chosen, "jsonl", "application/jsonl", _json_lines)


def _stream(
    caller: auth.Caller,
    job_id: int,
    chosen: trials.Filter,
    suffix: str,
    media_type: str,
    lines: _Lines,
) -> fastapi.Response:
    with caller.read() as tx:
        jobs.get(tx, job_id)
    name = f'attachment; filename="job-{job_id}-trials.{suffix}"'
    return responses.StreamingResponse(
        _pages(caller, job_id, chosen, lines),
        media_type=media_type,
        headers={"Content-Disposition": name},
    )


def _pages(
    caller: auth.Caller,
    job_id: int,
    chosen: trials.Filter,
    lines: _Lines,
) -> Iterator[str]:
    after: int | None = 0
    is_first = True
    while after is not None:
        with caller.read() as tx:
            selected = trials.page(tx, job_id, chosen, trials.BATCH, after)
            tasks = jobs.tasks(tx, job_id)
        yield lines(selected.trials, tasks, is_first)
        after, is_first = selected.next, False


def _csv_lines(
    selected: tuple[rows.Trial, ...], tasks: Sequence[rows.Task], with_head: bool
) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    if with_head:
        writer.writerow(COLUMNS)
    for trial in selected:
        writer.writerow([_cell(trial, name) for name in COLUMNS])
    return text.getvalue()


def _cell(trial: rows.Trial, name: str) -> object:
    value = getattr(trial, name)
    if name == "decisions":
        return " ".join(map(str, value))
    if name == "measured_at":
        return value.isoformat()
    if name == "is_best":
        return int(value)
    return responding.safe_cell(value)


def _json_lines(
    selected: tuple[rows.Trial, ...], tasks: Sequence[rows.Task], with_head: bool
) -> str:
    return "".join(f"{decisions.body(tasks, trial).model_dump_json()}\n" for trial in selected)
