"""Convergence: best so far of one job or several, and what the cost model had predicted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated

import fastapi
from sqlalchemy import orm

from server.cache import response_cache
from server.store import jobs, rows, trials
from server.web import auth, dependencies, requests, responses, shared_response

router = fastapi.APIRouter(tags=["curves"])

#: Jobs of one overlay.
MAX_JOBS = 32

_Job = Annotated[int, fastapi.Query(ge=1, le=requests.MAX_INT)]


@router.get("/v1/jobs/{job_id}/curve", response_model=responses.Curve)
async def curve(
    job_id: requests.Id,
    caller: auth.Reader,
    services: dependencies.Needed,
    task: requests.TaskFilter = None,
) -> fastapi.Response:
    """Best so far of a job or one of its tasks, against trials and elapsed seconds."""

    def read(tx: orm.Session) -> responses.Curve:
        return _curves(tx, [job_id], task)[0]

    return await shared_response.answer(
        services, response_cache.Asked(("curve", task), (job_id,)), read
    )


@router.get("/v1/curves", response_model=responses.Listed[responses.Curve])
async def curves(
    caller: auth.Reader,
    services: dependencies.Needed,
    job: Annotated[list[_Job], fastapi.Query(min_length=1, max_length=MAX_JOBS)],
    task: requests.TaskFilter = None,
) -> fastapi.Response:
    """The curves of several jobs, to lay over one another: `?job=3&job=7`."""
    asked = tuple(dict.fromkeys(job))

    def read(tx: orm.Session) -> responses.Listed[responses.Curve]:
        return responses.Listed(items=_curves(tx, asked, task))

    return await shared_response.answer(
        services, response_cache.Asked(("curves", task), asked), read
    )


@router.get("/v1/jobs/{job_id}/predicted")
def predicted(
    job_id: requests.Id,
    caller: auth.Reader,
    services: dependencies.Needed,
    task: requests.TaskFilter = None,
    limit: Annotated[int, fastapi.Query(ge=1, le=5000, description="newest trials")] = 2000,
) -> responses.Predicted:
    """What the cost model said of trials, and what was measured."""
    with services.db.read() as tx:
        jobs.get(tx, job_id)
        found = trials.predicted(tx, job_id, task, limit)
    said, was = [p.predicted_us for p in found], [p.latency_us for p in found]
    ratios = [max(a / b, b / a) for a, b in zip(said, was, strict=True) if a > 0]
    return responses.Predicted(
        n=len(found),
        rank_correlation=rank_correlation(said, was),
        median_ratio=statistics.median(ratios) if ratios else None,
        points=[responses.PredictedPoint.model_validate(point) for point in found],
    )


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks, equal values sharing theirs; None if one is flat."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return statistics.correlation(_ranks(one), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for position in order[begin:end]:
            ranks[position] = (begin + end - 1) / 2
        begin = end
    return ranks


def _curves(tx: orm.Session, job_ids: Sequence[int], task: int | None) -> list[responses.Curve]:
    found = trials.curves(tx, job_ids, task)
    of = {number: jobs.get(tx, number) for number in job_ids}
    tasks = {} if task is None else {n: jobs.tasks(tx, n) for n in job_ids}
    if task is not None:
        unscheduled = {n: _unscheduled(tasks[n], task) for n in job_ids}
    else:
        unscheduled = {n: of[n].unscheduled_us for n in job_ids}
    return [_curve(of[n], found[n], unscheduled[n]) for n in job_ids]


def _unscheduled(tasks: Sequence[rows.Task], number: int) -> float | None:
    return next((task.unscheduled_us for task in tasks if task.number == number), None)


def _curve(
    job: rows.Job, points: Sequence[rows.CurvePoint], unscheduled_us: float | None
) -> responses.Curve:
    last_us = points[-1].best_us if points else 1.0
    return responses.Curve(
        job_id=job.id,
        name=job.name,
        state=job.state,
        unscheduled_us=unscheduled_us,
        points=[
            responses.CurvePoint(
                trial=point.trial,
                elapsed_s=point.elapsed_s,
                measured_s=point.measured_s,
                best_us=point.best_us,
                share_of_best=last_us / point.best_us,
            )
            for point in points
        ],
    )
