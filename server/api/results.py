"""What a job found: its tasks, `/trials` in pages and as files, `/search`, curves."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import fastapi
from sqlalchemy import orm
from starlette import responses

from server import errors
from server.api import responding
from server.store import jobs, networks, plot_points, progress, rows, trials
from server.web import auth, decisions, request_bodies, response_bodies

tasks_router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/tasks", tags=["tasks"])


@tasks_router.get("", response_model=response_bodies.Listed[response_bodies.Task])
async def every(job_id: request_bodies.Id, caller: auth.Reader) -> fastapi.Response:
    """The tasks of a job, in order."""

    def read(tx: orm.Session) -> response_bodies.Listed[response_bodies.Task]:
        jobs.get(tx, job_id)
        tasks = jobs.tasks(tx, job_id)
        return response_bodies.listed(response_bodies.Task, tasks)

    return await responding.respond(caller, "tasks", (job_id,), read)


@tasks_router.get("/{number}/code")
def code(
    job_id: request_bodies.Id, number: request_bodies.Number, caller: auth.Reader
) -> response_bodies.Code:
    """TVMScript, generated source and assembly of a task's best schedule."""
    with caller.read() as tx:
        schedule, source, assembly = jobs.code(tx, job_id, number)
    return response_bodies.Code(schedule=schedule, source=source, assembly=assembly)


trials_router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["trials"])

#: Trials, with the tasks of their job, as text.
_Text = Callable[[Sequence[rows.Trial], Sequence[rows.Task]], str]

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


@trials_router.get("/trials")
def page(
    request: fastapi.Request,
    response: fastapi.Response,
    job_id: request_bodies.Id,
    caller: auth.Reader,
    chosen: _Filter,
    limit: request_bodies.Limit = 100,
    after: request_bodies.After = None,
) -> response_bodies.Page[response_bodies.Trial]:
    """Trials by number."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        selected = trials.page(tx, job_id, chosen, limit, after or 0)
        tasks = jobs.tasks(tx, job_id)
    responding.link(request, response, selected.next)
    items = [decisions.body(tasks, trial) for trial in selected.items]
    return response_bodies.Page(items=items, next=selected.next)


@trials_router.get("/trials/{number}")
def get(
    job_id: request_bodies.Id, number: request_bodies.Id, caller: auth.Reader
) -> response_bodies.Trial:
    """One trial."""
    with caller.read() as tx:
        trial = trials.get(tx, job_id, number)
        return decisions.body(jobs.tasks(tx, job_id), trial)


@trials_router.get("/trials.csv", **responding.file_of("text/csv"))
def as_csv(job_id: request_bodies.Id, caller: auth.Reader, chosen: _Filter) -> fastapi.Response:
    """All trials as CSV, streamed."""
    head = responding.csv_text([COLUMNS])
    return _stream(caller, job_id, chosen, "csv", "text/csv; charset=utf-8", head, _csv)


@trials_router.get("/trials.jsonl", **responding.file_of("application/jsonl"))
def as_jsonl(job_id: request_bodies.Id, caller: auth.Reader, chosen: _Filter) -> fastapi.Response:
    """All trials as JSON lines, streamed."""
    return _stream(caller, job_id, chosen, "jsonl", "application/jsonl", "", _json_lines)


def _stream(
    caller: auth.Caller,
    job_id: int,
    chosen: trials.Filter,
    suffix: str,
    media_type: str,
    head: str,
    text: _Text,
) -> fastapi.Response:
    with caller.read() as tx:
        jobs.get(tx, job_id)
    name = f'attachment; filename="job-{job_id}-trials.{suffix}"'
    return responses.StreamingResponse(
        _pages(caller, job_id, chosen, head, text),
        media_type=media_type,
        headers={"Content-Disposition": name},
    )


def _pages(
    caller: auth.Caller, job_id: int, chosen: trials.Filter, head: str, text: _Text
) -> Iterator[str]:
    yield head
    after: int | None = 0
    while after is not None:
        with caller.read() as tx:
            selected = trials.page(tx, job_id, chosen, trials.BATCH, after)
            tasks = jobs.tasks(tx, job_id)
        yield text(selected.items, tasks)
        after = selected.next


def _csv(selected: Sequence[rows.Trial], _: Sequence[rows.Task]) -> str:
    return responding.csv_text([_cell(trial, name) for name in COLUMNS] for trial in selected)


def _cell(trial: rows.Trial, name: str) -> object:
    value = getattr(trial, name)
    return " ".join(map(str, value)) if name == "decisions" else responding.cell(value)


def _json_lines(selected: Sequence[rows.Trial], tasks: Sequence[rows.Task]) -> str:
    return "".join(f"{decisions.body(tasks, trial).model_dump_json()}\n" for trial in selected)


search_router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["search"])


@search_router.get("/search")
def search(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    task: request_bodies.TaskFilter = None,
    after: Annotated[
        int,
        fastapi.Query(
            ge=-1, le=request_bodies.MAX_INT, description="rounds after it; needs `task`"
        ),
    ] = -1,
    limit: request_bodies.Limit = 200,
) -> response_bodies.Search:
    """Loss, penalty and temperature of each descent, training of the model, error classes."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        rounds = progress.rounds(tx, job_id, task, after, limit)
        trainings = progress.trainings(tx, job_id)
        errors = trials.error_counts(tx, job_id)
    return response_bodies.Search(
        rounds=[response_bodies.Round.model_validate(each) for each in rounds],
        trainings=[response_bodies.Training.model_validate(each) for each in trainings],
        errors=errors,
    )


curves_router = fastapi.APIRouter(tags=["curves"])

_Job = Annotated[int, fastapi.Query(ge=1, le=request_bodies.MAX_INT)]


@curves_router.get("/v1/jobs/{job_id}/curve", response_model=response_bodies.Curve)
async def curve(
    job_id: request_bodies.Id, caller: auth.Reader, task: request_bodies.TaskFilter = None
) -> fastapi.Response:
    """Best so far of a job or one of its tasks, against trials and elapsed seconds."""
    return await responding.respond(
        caller, ("curve", task), (job_id,), lambda tx: _curves(tx, [job_id], task)[0]
    )


@curves_router.get("/v1/jobs/{job_id}/network/curve", response_model=response_bodies.Curve)
async def network_curve(job_id: request_bodies.Id, caller: auth.Reader) -> fastapi.Response:
    """Estimated latency of a call of the job's network: sum of calls x latency over its tasks.

    A task counts with the faster of its best so far and its unscheduled program.
    """

    def read(tx: orm.Session) -> response_bodies.Curve:
        job = jobs.get(tx, job_id)
        if networks.name_of(tx, job_id) is None:
            raise errors.NotFound(f"job {job_id} builds no network")
        return _curve(job, plot_points.network_curve(tx, job_id), job.unscheduled_us)

    return await responding.respond(caller, "network curve", (job_id,), read)


@curves_router.get("/v1/curves", response_model=response_bodies.Listed[response_bodies.Curve])
async def curves(
    caller: auth.Reader,
    job: Annotated[
        list[_Job], fastapi.Query(min_length=1, max_length=request_bodies.MAX_COMPARED)
    ],
    task: request_bodies.TaskFilter = None,
) -> fastapi.Response:
    """The curves of several jobs, to lay over one another: `?job=3&job=7`."""
    job_ids = tuple(dict.fromkeys(job))
    return await responding.respond(
        caller,
        ("curves", task),
        job_ids,
        lambda tx: response_bodies.Listed(items=_curves(tx, job_ids, task)),
    )


@curves_router.get("/v1/jobs/{job_id}/predicted")
def predicted(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    task: request_bodies.TaskFilter = None,
    limit: Annotated[int, fastapi.Query(ge=1, le=5000, description="newest trials")] = 2000,
) -> response_bodies.Predicted:
    """Latencies of trials as the cost model predicted them, and as they were measured."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        pairs = plot_points.predicted(tx, job_id, task, limit)
    predicted_us, measured_us = [p.predicted_us for p in pairs], [p.latency_us for p in pairs]
    ratios = [max(p / m, m / p) for p, m in zip(predicted_us, measured_us, strict=True) if p > 0]
    return response_bodies.Predicted(
        n=len(pairs),
        rank_correlation=plot_points.rank_correlation(predicted_us, measured_us),
        median_ratio=statistics.median(ratios) if ratios else None,
        points=[response_bodies.PredictedPoint.model_validate(pair) for pair in pairs],
    )


def _curves(
    tx: orm.Session, job_ids: Sequence[int], task: int | None
) -> list[response_bodies.Curve]:
    curve_points = plot_points.curves(tx, job_ids, task)
    of = {number: jobs.get(tx, number) for number in job_ids}
    if task is not None:
        unscheduled = {n: _unscheduled(jobs.tasks(tx, n), task) for n in job_ids}
    else:
        unscheduled = {n: of[n].unscheduled_us for n in job_ids}
    return [_curve(of[n], curve_points[n], unscheduled[n]) for n in job_ids]


def _unscheduled(tasks: Sequence[rows.Task], number: int) -> float | None:
    return next((task.unscheduled_us for task in tasks if task.number == number), None)


def _curve(
    job: rows.Job, curve_points: Sequence[rows.CurvePoint], unscheduled_us: float | None
) -> response_bodies.Curve:
    last_us = curve_points[-1].best_us if curve_points else 1.0
    return response_bodies.Curve(
        job_id=job.id,
        name=job.name,
        state=job.state,
        unscheduled_us=unscheduled_us,
        points=[
            response_bodies.CurvePoint(**dataclasses.asdict(p), share_of_best=last_us / p.best_us)
            for p in curve_points
        ],
    )
