"""Several jobs side by side: curves laid over one another, and a table of figures."""

from __future__ import annotations

import re
from typing import Annotated

import fastapi

from server import errors, states
from server.dashboard import chart_data, render
from server.store import job_lists, jobs, rows
from server.web import dependencies, request_bodies

router = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)

_NUMBERS = re.compile(r"[0-9]{1,9}")


@router.get("/dashboard/compare")
def compare(
    request: fastapi.Request,
    viewer: render.Viewer,
    services: dependencies.ServicesDep,
    job: Annotated[list[str] | None, fastapi.Query(max_length=200)] = None,
) -> fastapi.Response:
    """`?job=3&job=7`, or numbers with commas in one field."""
    numbers = numbers_of(job or [])
    compared: list[rows.Job] = []
    missing: list[int] = []
    with viewer.read() as tx:
        recent = job_lists.page(tx, limit=40).jobs
        for number in numbers[: request_bodies.MAX_COMPARED]:
            try:
                compared.append(jobs.get(tx, number))
            except errors.NotFound:
                missing.append(number)
        chart = chart_data.compared(tx, compared)
    bests = [row.best_us for row in compared if row.best_us is not None]
    return render.page(
        request,
        "compare.html",
        viewer,
        jobs=compared,
        chart=chart,
        missing=missing,
        too_many=len(numbers) > request_bodies.MAX_COMPARED,
        most=request_bodies.MAX_COMPARED,
        best_us=min(bests, default=None),
        recent=[row for row in recent if row.id not in numbers and row.n_trials],
        is_live=any(row.state not in states.ENDED for row in compared),
        mixed=len({row.flops for row in compared}) > 1,
    )


def numbers_of(texts: list[str]) -> list[int]:
    """Job numbers in any writing, each once."""
    numbers = [int(digits) for text in texts for digits in _NUMBERS.findall(text)]
    return [number for number in dict.fromkeys(numbers) if number > 0]
