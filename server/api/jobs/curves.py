"""Convergence: best so far of one job or several, and what the cost model had predicted."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Annotated

import fastapi
from sqlalchemy import orm

from server import errors
from server.api import responding
from server.store import jobs, networks, plot_points, rows
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(tags=["curves"])

_Job = Annotated[int, fastapi.Query(ge=1, le=request_bodies.MAX_INT)]


@router.get("/v1/jobs/{job_id}/curve", response_model=response_bodies.Curve)
async def curve(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    task: request_bodies.TaskFilter = None,
) -> fastapi.Response:
    """Best so far of a job or one of its tasks, against trials and elapsed seconds."""

    def read(tx: orm.Session) -> response_bodies.Curve:
        return _curves(tx, [job_id], task)[0]

    return await responding.respond(services, caller, ("curve", task), (job_id,), read)


@router.get("/v1/jobs/{job_id}/network/curve", response_model=response_bodies.Curve)
async def network_curve(
    job_id: request_bodies.Id, caller: auth.Reader, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Estimated latency of a call of the job's network: sum of calls x latency over its tasks.

    A task counts with the faster of its best so far and its unscheduled program.
    """

    def read(tx: orm.Session) -> response_bodies.Curve:
        job = jobs.get(tx, job_id)
        if networks.name_of(tx, job_id) is None:
            raise errors.NotFound(f"job {job_id} builds no network")
        return _curve(job, plot_points.network_curve(tx, job_id), job.unscheduled_us)

    return await responding.respond(services, caller, "network curve", (job_id,), read)


@router.get("/v1/curves", response_model=response_bodies.Listed[response_bodies.Curve])
async def curves(
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    job: Annotated[
        list[_Job], fastapi.Query(min_length=1, max_length=request_bodies.MAX_COMPARED)
    ],
    task: request_bodies.TaskFilter = None,
) -> fastapi.Response:
    """The curves of several jobs, to lay over one another: `?job=3&job=7`."""
    job_ids = tuple(dict.fromkeys(job))

    def read(tx: orm.Session) -> response_bodies.Listed[response_bodies.Curve]:
        return response_bodies.Listed(items=_curves(tx, job_ids, task))

    return await responding.respond(services, caller, ("curves", task), job_ids, read)


@router.get("/v1/jobs/{job_id}/predicted")
def predicted(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
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
