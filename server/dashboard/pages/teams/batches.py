"""Batches of the viewer's key (an administrator's: of all), with their jobs as they stand.

What is done with the jobs of a batch is done by the page of selections.
"""

from __future__ import annotations

import fastapi

from server import states, teams
from server.dashboard import render
from server.dashboard.pages import jobs as jobs_page
from server.dashboard.pages.teams import forms
from server.store import jobs, keys
from server.web import request_bodies

router = fastapi.APIRouter(
    prefix="/dashboard/batches", route_class=render.Page, include_in_schema=False
)

#: Batches of a page.
LIMIT = 25


@router.get("")
def every(
    request: fastapi.Request, viewer: forms.Submitter, after: request_bodies.After = None
) -> fastapi.Response:
    """Batches, newest first, and how far they are."""
    listed = teams.page_of_batches(viewer, LIMIT + 1, after)
    with viewer.read() as tx:
        owners = keys.names(tx, (batch.row.key_id for batch in listed))
    return render.page(
        request,
        "teams/batches.html",
        viewer,
        batches=listed[:LIMIT],
        owners=owners,
        next=listed[LIMIT - 1].row.id if len(listed) > LIMIT else None,
        after=after,
    )


@router.get("/{batch_id}")
def one(
    request: fastapi.Request, batch_id: request_bodies.Id, viewer: forms.Submitter
) -> fastapi.Response:
    """A batch: each of its jobs, or why it was refused."""
    batch = teams.batch(viewer, batch_id)
    numbers = [item.job_id for item in batch.items if item.job_id is not None]
    with viewer.read() as tx:
        by_number = {job.id: job for job in jobs.some(tx, numbers)}
        owners = keys.names(tx, [batch.row.key_id])
    unfinished = [job.id for job in by_number.values() if job.state not in states.ENDED]
    return render.page(
        request,
        "teams/batch.html",
        viewer,
        batch=batch,
        jobs=by_number,
        owner=owners.get(batch.row.key_id, ""),
        unfinished=unfinished,
        verbs={job.id: " ".join(jobs_page.verbs(viewer, job)) for job in by_number.values()},
        max_compared=request_bodies.MAX_COMPARED,
    )
