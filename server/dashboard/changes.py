"""Changing name, note, tags and priority of a job, and deleting it: the forms of its page.

Both do what the API's routes do.
"""

from __future__ import annotations

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import errors
from server.api.jobs import jobs as api_jobs
from server.dashboard import render
from server.dashboard.pages import logins
from server.web import auth, dependencies, requests

router = fastapi.APIRouter(
    prefix="/dashboard/jobs/{job_id}", route_class=render.Page, include_in_schema=False
)


@router.post("/change")
async def change(
    request: fastapi.Request,
    job_id: requests.Id,
    viewer: render.Viewer,
    services: dependencies.Needed,
) -> fastapi.Response:
    """Write what the form has."""
    given = await logins.checked_form(request, viewer)
    _check(viewer)
    texts = {name: values[-1].strip() for name, values in given.items()}
    tags = [tag.strip() for tag in texts.get("tags", "").split(",") if tag.strip()]
    body = {name: texts[name] for name in ("name", "note", "priority") if name in texts}
    try:
        ask = requests.Changes.model_validate({**body, "tags": tags})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ", ".join(map(str, first["loc"]))
        raise errors.InvalidRequest(f"{where}: {first['msg']}") from error
    await anyio.to_thread.run_sync(api_jobs.change, job_id, ask, viewer, services)
    return responses.RedirectResponse(f"/dashboard/jobs/{job_id}", 303)


@router.post("/delete")
async def delete(
    request: fastapi.Request,
    job_id: requests.Id,
    viewer: render.Viewer,
    services: dependencies.Needed,
) -> fastapi.Response:
    """Remove an ended job with all it has."""
    await logins.checked_form(request, viewer)
    _check(viewer)
    await anyio.to_thread.run_sync(api_jobs.delete, job_id, viewer, services)
    return responses.RedirectResponse(logins.HOME, 303)


def _check(viewer: auth.Caller) -> None:
    if not viewer.can("submit"):
        raise errors.Forbidden("this needs a key with the scope submit")
