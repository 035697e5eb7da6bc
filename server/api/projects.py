"""`/v1/projects`: teams, their limits and what they use."""

from __future__ import annotations

from typing import Annotated

import fastapi

from server import teams
from server.store import projects
from server.web import auth, project_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/projects", tags=["projects"])

_Name = Annotated[str, fastapi.Path(max_length=64, examples=["default"])]


@router.get("")
def every(caller: auth.Reader) -> response_bodies.Listed[project_bodies.Project]:
    """The projects that the key sees: its own; an admin all."""
    with caller.read() as tx:
        visible = projects.every(tx)
    return response_bodies.Listed(
        items=[project_bodies.Project.model_validate(project) for project in visible]
    )


@router.post("", status_code=201)
def create(body: project_bodies.NewProject, caller: auth.Admin) -> project_bodies.Project:
    """Make a project; its name is permanent."""
    return project_bodies.Project.model_validate(teams.create_project(caller, body))


@router.get("/{name}")
def get(name: _Name, caller: auth.Reader) -> project_bodies.ProjectUsage:
    """One project, and what it has now."""
    with caller.read() as tx:
        project = projects.get(tx, name)
        usage = projects.usage(tx, name)
    limits = project_bodies.Project.model_validate(project).model_dump()
    return project_bodies.ProjectUsage(
        **limits, n_running_jobs=usage.n_jobs, n_bytes=usage.n_bytes
    )


@router.put("/{name}")
def change(
    name: _Name, body: project_bodies.ProjectLimits, caller: auth.Admin
) -> project_bodies.Project:
    """Replace the limits of a project; a limit that is left out is the service's."""
    return project_bodies.Project.model_validate(teams.limit_project(caller, name, body))
