"""Batches and templates of the viewer's key (of an administrator: of all), and forms in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import errors, states, teams
from server.dashboard import job_form, render
from server.dashboard.pages import access
from server.dashboard.pages import jobs as jobs_page
from server.store import jobs, keys, requests
from server.web import auth, dependencies, request_bodies


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """A form that came in: its texts, the ticked boxes, and by field what is wrong."""

    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ticked: tuple[str, ...] = ()
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> int:
        """The status of a page with this form."""
        return 422 if self.wrong else 200


def texts_of(form: Mapping[str, list[str]]) -> dict[str, str]:
    """The last value of each field, without the space around it."""
    return {name: values[-1].strip() for name, values in form.items()}


def wrong_of(error: pydantic.ValidationError) -> dict[str, str]:
    """What a body's validation says, by field of the body."""
    return {str(each["loc"][0]): job_form.words(each["msg"]) for each in error.errors()}


def submitter(viewer: render.Viewer) -> auth.Caller:
    """Whoever is logged in and may submit.

    Raises:
        Forbidden
    """
    if not viewer.can("submit"):
        raise errors.Forbidden("this needs a key with the scope submit")
    return viewer


#: May submit; every viewer may read.
Submitter = Annotated[auth.Caller, fastapi.Depends(submitter)]


batches_router = fastapi.APIRouter(
    prefix="/dashboard/batches", route_class=render.Page, include_in_schema=False
)

#: Batches of a page.
LIMIT = 25


@batches_router.get("")
def every(
    request: fastapi.Request, viewer: Submitter, after: request_bodies.After = None
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


@batches_router.get("/{batch_id}")
def one(
    request: fastapi.Request, batch_id: request_bodies.Id, viewer: Submitter
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


templates_router = fastapi.APIRouter(
    prefix="/dashboard/templates", route_class=render.Page, include_in_schema=False
)

TEMPLATES = "/dashboard/templates"

_TemplateName = Annotated[
    str, pydantic.Field(pattern=request_bodies.TEMPLATE_NAME, max_length=100)
]
_NAME = pydantic.TypeAdapter(_TemplateName)
_JOB = pydantic.TypeAdapter(Annotated[int, pydantic.Field(ge=1, le=request_bodies.MAX_INT)])
_Name = Annotated[str, fastapi.Path(max_length=100)]


@templates_router.get("")
def every_template(request: fastapi.Request, viewer: Submitter) -> fastapi.Response:
    """All templates of this key."""
    with viewer.read() as tx:
        saved = requests.templates(tx, viewer.key.id)
    return render.page(request, "teams/templates.html", viewer, templates=saved)


@templates_router.post("")
async def save(
    request: fastapi.Request, viewer: Submitter, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Save the request of a job under a name."""
    texts = texts_of(await access.checked_form(request, viewer))
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
    body = await anyio.to_thread.run_sync(teams.request_of, viewer, job_id)
    await anyio.to_thread.run_sync(teams.save_template, services, viewer, name, body)
    return responses.RedirectResponse(TEMPLATES, 303)


@templates_router.post("/{name}/delete")
async def delete(request: fastapi.Request, name: _Name, viewer: Submitter) -> fastapi.Response:
    """Remove a template; its jobs stay."""
    await access.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.delete_template, viewer, name)
    return responses.RedirectResponse(TEMPLATES, 303)
