"""Changing name, note, tags and priority of a job, and deleting it: the forms of its page."""

from __future__ import annotations

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import actions, errors
from server.dashboard import render
from server.dashboard.pages import logins
from server.web import auth, dependencies, request_bodies

router = fastapi.APIRouter(
    prefix="/dashboard/jobs/{job_id}", route_class=render.Page, include_in_schema=False
)


@router.post("/change")
async def change(
    request: fastapi.Request,
    job_id: request_bodies.Id,
    viewer: render.Viewer,
    services: dependencies.ServicesDep,
) -> fastapi.Response:
    """Store what the form has."""
    form = await logins.checked_form(request, viewer)
    _check(viewer)
    texts = {name: values[-1].strip() for name, values in form.items()}
    tags = [tag.strip() for tag in texts.get("tags", "").split(",") if tag.strip()]
    values = {name: texts[name] for name in ("name", "note", "priority") if name in texts}
    try:
        changes = request_bodies.Changes.model_validate({**values, "tags": tags})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ", ".join(map(str, first["loc"]))
        raise errors.InvalidRequest(f"{where}: {first['msg']}") from error
    await anyio.to_thread.run_sync(actions.change_job, services, viewer, job_id, changes)
    return responses.RedirectResponse(f"/dashboard/jobs/{job_id}", 303)


@router.post("/delete")
async def delete(
    request: fastapi.Request,
    job_id: request_bodies.Id,
    viewer: render.Viewer,
    services: dependencies.ServicesDep,
) -> fastapi.Response:
    """Remove an ended job with all it has."""
    await logins.checked_form(request, viewer)
    _check(viewer)
    await anyio.to_thread.run_sync(actions.delete_job, services, viewer, job_id)
    return responses.RedirectResponse(logins.HOME, 303)


def _check(viewer: auth.Caller) -> None:
    if not viewer.can("submit"):
        raise errors.Forbidden("this needs a key with the scope submit")
