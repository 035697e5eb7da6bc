"""Several jobs side by side: curves laid over one another, and a table of figures.

The curves come from `/v1/curves`.
"""

from __future__ import annotations

import re
from typing import Annotated

import fastapi

from server import errors, states
from server.api.jobs import curves
from server.dashboard import render
from server.store import jobs, rows
from server.web import dependencies

router = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)

_NUMBERS = re.compile(r"[0-9]{1,9}")


@router.get("/dashboard/compare")
def compare(
    request: fastapi.Request,
    viewer: render.Viewer,
    services: dependencies.Needed,
    job: Annotated[list[str] | None, fastapi.Query(max_length=200)] = None,
) -> fastapi.Response:
    """`?job=3&job=7`, or numbers with commas in one field."""
    numbers = numbers_of(job or [])
    found: list[rows.Job] = []
    missing: list[int] = []
    with services.db.read() as tx:
        recent = jobs.page(tx, limit=40).jobs
        for number in numbers[: curves.MAX_JOBS]:
            try:
                found.append(jobs.get(tx, number))
            except errors.NotFound:
                missing.append(number)
    bests = [one.best_us for one in found if one.best_us is not None]
    return render.page(
        request, "compare.html", viewer,
        jobs=found,
        missing=missing,
        too_many=len(numbers) > curves.MAX_JOBS,
        most=curves.MAX_JOBS,
        best_us=min(bests, default=None),
        recent=[one for one in recent if one.id not in numbers and one.n_trials],
        is_live=any(one.state not in states.ENDED for one in found),
        mixed=len({one.flops for one in found}) > 1,
    )  # fmt: skip


def numbers_of(given: list[str]) -> list[int]:
    """Job numbers in any writing, each once."""
    found = [int(text) for part in given for text in _NUMBERS.findall(part)]
    return [number for number in dict.fromkeys(found) if number > 0]
