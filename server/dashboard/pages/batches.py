"""Batches and templates of the viewer's key (of an administrator: of all)."""

from __future__ import annotations

from typing import Annotated

import fastapi
import pydantic
from starlette import responses

from server import errors, states, teams
from server.dashboard import render
from server.dashboard.pages import access
from server.dashboard.pages import jobs as jobs_page
from server.store import jobs, keys, requests
from server.web import request_bodies

batches_router = render.router("/dashboard/batches")

#: Batches of a page.
LIMIT = 25


@batches_router.get("")
def every(viewer: render.Submitter, after: request_bodies.After = None) -> fastapi.Response:
    """Batches, newest first, and how far they are."""
    listed = teams.page_of_batches(viewer, LIMIT + 1, after)
    with viewer.read() as tx:
        owners = keys.names(tx, (batch.row.key_id for batch in listed))
    return viewer.page(
        "teams/batches.html",
        batches=listed[:LIMIT],
        owners=owners,
        next=listed[LIMIT - 1].row.id if len(listed) > LIMIT else None,
        after=after,
    )


@batches_router.get("/{batch_id}")
def one(batch_id: request_bodies.Id, viewer: render.Submitter) -> fastapi.Response:
    """A batch: each of its jobs, or why it was refused."""
    batch = teams.batch(viewer, batch_id)
    numbers = [item.job_id for item in batch.items if item.job_id is not None]
    with viewer.read() as tx:
        by_number = {job.id: job for job in jobs.some(tx, numbers)}
        owners = keys.names(tx, [batch.row.key_id])
    unfinished = [job.id for job in by_number.values() if job.state not in states.ENDED]
    return viewer.page(
        "teams/batch.html",
        batch=batch,
        jobs=by_number,
        owner=owners.get(batch.row.key_id, ""),
        unfinished=unfinished,
        verbs={job.id: " ".join(jobs_page.verbs(viewer, job)) for job in by_number.values()},
        max_compared=request_bodies.MAX_COMPARED,
    )


templates_router = render.router("/dashboard/templates")

TEMPLATES = "/dashboard/templates"

_TemplateName = Annotated[
    str, pydantic.Field(pattern=request_bodies.TEMPLATE_NAME, max_length=100)
]
_NAME = pydantic.TypeAdapter(_TemplateName)
_JOB = pydantic.TypeAdapter(Annotated[int, pydantic.Field(ge=1, le=request_bodies.MAX_INT)])
_Name = Annotated[str, fastapi.Path(max_length=100)]


@templates_router.get("")
def every_template(viewer: render.Submitter) -> fastapi.Response:
    """All templates of this key."""
    with viewer.read() as tx:
        saved = requests.templates(tx, viewer.key.id)
    return viewer.page("teams/templates.html", templates=saved)


@templates_router.post("")
def save(viewer: render.Submitter, form: access.Form) -> fastapi.Response:
    """Save the request of a job under a name."""
    texts = access.texts_of(form)
    try:
        job_id = _JOB.validate_python(texts.get("job", ""))
    except pydantic.ValidationError as error:
        raise errors.NotFound("there is no such job") from error
    try:
        name = _NAME.validate_python(texts.get("name", ""))
    except pydantic.ValidationError as error:
        raise errors.InvalidRequest(
            "the name of a template has letters, digits and . _ -, begins with a letter or a "
            "digit, and is at most 100 characters long"
        ) from error
    teams.save_template(viewer, name, teams.request_of(viewer, job_id))
    return responses.RedirectResponse(TEMPLATES, 303)


@templates_router.post("/{name}/delete")
def delete(name: _Name, viewer: render.Submitter, _: access.Form) -> fastapi.Response:
    """Remove a template; its jobs stay."""
    teams.delete_template(viewer, name)
    return responses.RedirectResponse(TEMPLATES, 303)
