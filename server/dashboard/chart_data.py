"""What charts draw, as JSON in their page: read in the transaction of the page's figures.

Columns rather than rows, and numbers of six digits, because a page that is live is fetched often.
Measured trials are not part of it: they never change, so a page fetches those that are new up to
the last one that its figures know (`server.dashboard.chart_data`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import fastapi
from sqlalchemy import orm
from starlette import responses

from server.store import jobs, networks, plot_points, rows
from server.web import auth, request_bodies


def convergence(
    tx: orm.Session,
    job: rows.Job,
    tasks: Sequence[rows.Task],
    network: networks.Network | None = None,
) -> dict[str, Any]:
    """The curves of a job: of all its tasks together, of its network, and of each task."""
    curves = plot_points.task_curves(tx, job.id)
    return {
        "seq": job.last_seq,
        "n_trials": job.n_trials,
        "unscheduled_us": _digits(job.unscheduled_us),
        "total": _curve(plot_points.curves(tx, [job.id])[job.id]),
        "network": None if network is None else _network(tx, job, network),
        "tasks": [
            {
                "number": task.number,
                "name": task.name,
                "weight": task.weight,
                "unscheduled_us": _digits(task.unscheduled_us),
                **_curve(curves.get(task.number, [])),
            }
            for task in tasks
        ],
    }


def compared(tx: orm.Session, jobs: Sequence[rows.Job]) -> dict[str, Any]:
    """The curves of several jobs, each with the latency where it stands now."""
    curves = plot_points.curves(tx, [job.id for job in jobs]) if jobs else {}
    return {
        "jobs": [
            {
                "id": job.id,
                "name": job.name,
                "best_us_now": _digits(job.best_us),
                **_curve(curves[job.id]),
            }
            for job in jobs
        ]
    }


def search(
    job: rows.Job, task: int, pairs: Sequence[rows.Predicted], rounds: Sequence[rows.Round]
) -> dict[str, Any]:
    """Predicted against measured, and the last round whose descent the page knows."""
    return {
        "seq": job.last_seq,
        "task": task,
        "last_round": rounds[-1].round if rounds else -1,
        "trial": [pair.trial for pair in pairs],
        "round": [pair.round for pair in pairs],
        "predicted_us": _all_digits(pair.predicted_us for pair in pairs),
        "latency_us": _all_digits(pair.latency_us for pair in pairs),
    }


def _network(tx: orm.Session, job: rows.Job, network: networks.Network) -> dict[str, Any]:
    """The estimated latency of a network over the run; a whole call once it was timed."""
    return {
        "name": network.name,
        "call_us": _digits(network.call_us),
        **_curve(plot_points.network_curve(tx, job.id)),
    }


def _curve(curve_points: Sequence[rows.CurvePoint]) -> dict[str, Any]:
    return {
        "trial": [point.trial for point in curve_points],
        "elapsed_s": _all_digits(point.elapsed_s for point in curve_points),
        "measured_s": _all_digits(point.measured_s for point in curve_points),
        "best_us": _all_digits(point.best_us for point in curve_points),
    }


def _all_digits(values: Iterable[float]) -> list[float | None]:
    return [_digits(value) for value in values]


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


_Trial = Annotated[int, fastapi.Query(ge=0, le=request_bodies.MAX_INT)]

router = fastapi.APIRouter(prefix="/dashboard/data", include_in_schema=False)


@router.get("/jobs/{job_id}/points")
def points(
    job_id: request_bodies.Id,
    caller: auth.Reader,
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
    names = ("trial", "task", "elapsed_s", "measured_s", "latency_us")
    columns = zip(*trial_points, strict=True) if trial_points else [()] * len(names)
    content = dict(zip(names, columns, strict=True))
    return responses.JSONResponse(content, headers={"Cache-Control": "no-store"})
