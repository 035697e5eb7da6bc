"""Templates of the viewer's key: saved from a job, opened in the form of a new job, removed."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import errors, teams
from server.dashboard import render
from server.dashboard.pages import logins
from server.dashboard.pages.teams import forms
from server.store import requests
from server.web import dependencies, request_bodies

router = fastapi.APIRouter(
    prefix="/dashboard/templates", route_class=render.Page, include_in_schema=False
)

TEMPLATES = "/dashboard/templates"

_TemplateName = Annotated[
    str, pydantic.Field(pattern=request_bodies.TEMPLATE_NAME, max_length=100)
]
_NAME = pydantic.TypeAdapter(_TemplateName)
_JOB = pydantic.TypeAdapter(Annotated[int, pydantic.Field(ge=1, le=request_bodies.MAX_INT)])
_Name = Annotated[str, fastapi.Path(max_length=100)]


@router.get("")
def every(request: fastapi.Request, viewer: forms.Submitter) -> fastapi.Response:
    """All templates of this key."""
    with viewer.read() as tx:
        saved = requests.templates(tx, viewer.key.id)
    return render.page(request, "teams/templates.html", viewer, templates=saved)


@router.post("")
async def save(
    request: fastapi.Request, viewer: forms.Submitter, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Save the request of a job under a name."""
    texts = forms.texts_of(await logins.checked_form(request, viewer))
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


@router.post("/{name}/delete")
async def delete(
    request: fastapi.Request, name: _Name, viewer: forms.Submitter
) -> fastapi.Response:
    """Remove a template; its jobs stay."""
    await logins.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.delete_template, viewer, name)
    return responses.RedirectResponse(TEMPLATES, 303)
