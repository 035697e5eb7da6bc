"""All pages, and the answer to any other address."""

from __future__ import annotations

import fastapi
from starlette import responses

from server import errors
from server.dashboard import assets, render
from server.dashboard.pages import (
    access,
    changes,
    compare,
    devices,
    job,
    jobs,
    logins,
    points,
    reference,
    selection,
    submit,
)
from server.dashboard.pages.teams import batches, projects, templates, webhooks

_rest = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)


@_rest.get("/")
def root() -> fastapi.Response:
    """The service's address leads to the dashboard."""
    return responses.RedirectResponse(logins.HOME, 303)


@_rest.get("/dashboard/{path:path}")
def nothing(path: str, viewer: render.Viewer) -> fastapi.Response:
    """Any other address."""
    raise errors.NotFound("there is no such page")


#: The last one takes what no other does.
ALL = (
    *(
        module.router
        for module in (
            assets, logins, jobs, selection, changes, job, points, compare, devices, submit,
            batches, templates, projects, webhooks, access, reference,
        )
    ),
    _rest,
)  # fmt: skip
