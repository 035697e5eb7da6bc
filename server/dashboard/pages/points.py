"""Measured trials for the convergence plot, as columns of JSON."""

from __future__ import annotations

from typing import Annotated

import fastapi
from starlette import responses

from server.store import jobs, plot_points
from server.web import auth, dependencies, request_bodies

_Trial = Annotated[int, fastapi.Query(ge=0, le=request_bodies.MAX_INT)]

router = fastapi.APIRouter(prefix="/dashboard/data", include_in_schema=False)


@router.get("/jobs/{job_id}/points")
def points(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    task: request_bodies.TaskFilter = None,
    after: _Trial = 0,
    up_to: _Trial | None = None,
) -> fastapi.Response:
    """Trial numbers, seconds and latencies; of very many trials a share.

    A page asks for what was measured up to the trial that its figures know.
    """
    with caller.read() as tx:
        jobs.get(tx, job_id)
        trial_points = plot_points.points(tx, job_id, task, after, up_to)
    trial, tasks, elapsed_s, measured_s, latency_us = (
        zip(*trial_points, strict=True) if trial_points else [()] * 5
    )
    columns = {
        "trial": trial,
        "task": tasks,
        "elapsed_s": elapsed_s,
        "measured_s": measured_s,
        "latency_us": latency_us,
    }
    return responses.JSONResponse(columns, headers={"Cache-Control": "no-store"})
