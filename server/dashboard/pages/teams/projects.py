"""Projects: what they may have, what they use and whose keys see them.

Everybody sees the own project, administrators all; they make projects, set limits and see keys.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import errors, teams
from server.dashboard import render
from server.dashboard.pages import access, logins
from server.dashboard.pages.teams import forms
from server.store import keys, projects, rows
from server.web import auth, dependencies, project_bodies

router = fastapi.APIRouter(
    prefix="/dashboard/projects", route_class=render.Page, include_in_schema=False
)

PROJECTS = "/dashboard/projects"
#: Bytes of the unit in which forms have sizes.
_GB = 10**9
_LIMITS = ("max_running_jobs", "max_trials", "retention_days")

_Name = Annotated[str, fastapi.Path(max_length=64)]


@router.get("")
def every(
    request: fastapi.Request, viewer: render.Viewer, services: dependencies.ServicesDep
) -> fastapi.Response:
    """The projects that the viewer sees, with what they use."""
    return _list(request, viewer, services, forms.Filled())


@router.post("")
async def create(
    request: fastapi.Request, viewer: access.Admin, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Make a project and show it."""
    texts = forms.texts_of(await logins.checked_form(request, viewer))
    try:
        body = project_bodies.NewProject.model_validate(
            {"name": texts.get("name", ""), **_limits(texts)}
        )
        made = await anyio.to_thread.run_sync(teams.create_project, viewer, body)
    except (pydantic.ValidationError, errors.Conflict) as error:
        filled = forms.Filled(texts, wrong=_wrong(error))
        return await anyio.to_thread.run_sync(_list, request, viewer, services, filled)
    return responses.RedirectResponse(f"{PROJECTS}/{made.name}", 303)


@router.get("/{name}")
def one(
    request: fastapi.Request,
    name: _Name,
    viewer: render.Viewer,
    services: dependencies.ServicesDep,
) -> fastapi.Response:
    """A project with its limits, its usage and, for administrators, its keys."""
    return _one(request, name, viewer, services, None)


@router.post("/{name}")
async def change(
    request: fastapi.Request,
    name: _Name,
    viewer: access.Admin,
    services: dependencies.ServicesDep,
) -> fastapi.Response:
    """Replace the limits; empty fields are the service's."""
    texts = forms.texts_of(await logins.checked_form(request, viewer))
    try:
        body = project_bodies.ProjectLimits.model_validate(_limits(texts))
    except pydantic.ValidationError as error:
        filled = forms.Filled(texts, wrong=_wrong(error))
        return await anyio.to_thread.run_sync(_one, request, name, viewer, services, filled)
    await anyio.to_thread.run_sync(teams.limit_project, viewer, name, body)
    return responses.RedirectResponse(f"{PROJECTS}/{name}", 303)


def _list(
    request: fastapi.Request,
    viewer: auth.Caller,
    services: dependencies.Services,
    filled: forms.Filled,
) -> fastapi.Response:
    with viewer.read() as tx:
        visible = projects.every(tx)
        usages = projects.usages(tx)
        members = keys.every(tx) if viewer.can("admin") else []
    now = datetime.datetime.now(datetime.UTC)
    n_keys = {
        project.name: sum(
            key.project == project.name and access.state(key, now) == "valid" for key in members
        )
        for project in visible
    }
    return render.page(
        request,
        "teams/projects.html",
        viewer,
        filled.status,
        projects=[(project, usages[project.name], n_keys[project.name]) for project in visible],
        is_admin=viewer.can("admin"),
        filled=filled,
        settings=services.settings,
    )


def _one(
    request: fastapi.Request,
    name: str,
    viewer: auth.Caller,
    services: dependencies.Services,
    refused: forms.Filled | None,
) -> fastapi.Response:
    with viewer.read() as tx:
        project = projects.get(tx, name)
        usage = projects.usage(tx, name)
        members = [key for key in keys.every(tx) if key.project == name]
    now = datetime.datetime.now(datetime.UTC)
    filled = refused or forms.Filled(_texts_of(project))
    return render.page(
        request,
        "teams/project.html",
        viewer,
        filled.status,
        project=project,
        usage=usage,
        keys=[(key, access.scopes(key), access.state(key, now)) for key in reversed(members)],
        is_admin=viewer.can("admin"),
        filled=filled,
        settings=services.settings,
    )


def _limits(texts: Mapping[str, str]) -> dict[str, Any]:
    """The limits as the API's body; empty fields are left out."""
    limits: dict[str, Any] = {name: texts[name] for name in _LIMITS if texts.get(name)}
    if texts.get("max_gb"):
        try:
            limits["max_bytes"] = int(float(texts["max_gb"]) * _GB)
        except (ValueError, OverflowError):
            limits["max_bytes"] = texts["max_gb"]
    return limits


def _texts_of(project: rows.Project) -> dict[str, str]:
    """The fields of the form for a project's limits."""
    values = {name: getattr(project, name) for name in _LIMITS}
    texts = {name: str(value) for name, value in values.items() if value is not None}
    if project.max_bytes is not None:
        texts["max_gb"] = f"{project.max_bytes / _GB:.9g}"
    return texts


def _wrong(error: pydantic.ValidationError | errors.Conflict) -> dict[str, str]:
    """What is wrong, by field of the form."""
    if isinstance(error, errors.Conflict):
        return {"name": str(error)}
    return {
        "max_gb" if name == "max_bytes" else name: text
        for name, text in forms.wrong_of(error).items()
    }
