"""All pages, and the answer to any other address."""

from __future__ import annotations

import fastapi
from starlette import responses

from server import errors
from server.dashboard import chart_data, render
from server.dashboard.pages import (
    access,
    batches,
    job,
    jobs,
    projects,
    reference,
    selection,
    submit,
)

_rest = render.router()


@_rest.get("/")
def root() -> fastapi.Response:
    """The service's address leads to the dashboard."""
    return responses.RedirectResponse(access.HOME, 303)


@_rest.get("/dashboard/{path:path}")
def nothing(path: str, viewer: render.Viewer) -> fastapi.Response:
    """Any other address."""
    raise errors.NotFound("there is no such page")


#: The last one takes what no other does.
ALL = (
    render.assets_router,
    access.login_router,
    jobs.router,
    selection.router,
    selection.changes_router,
    job.router,
    chart_data.router,
    selection.compare_router,
    reference.devices_router,
    submit.router,
    batches.batches_router,
    batches.templates_router,
    projects.router,
    projects.webhooks_router,
    access.router,
    reference.router,
    _rest,
)
