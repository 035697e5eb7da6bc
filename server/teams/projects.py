"""Projects: made and limited by administrators, with the audit entry."""

from __future__ import annotations

from server.store import projects, rows
from server.web import auth, project_bodies


def create(caller: auth.Caller, body: project_bodies.NewProject) -> rows.Project:
    """Make a project.

    Raises:
        Conflict: there is one of that name.
    """
    limits = projects.Limits(**body.model_dump(exclude={"name"}))
    with caller.write() as tx:
        project = projects.create(tx, body.name, limits)
        caller.audit(tx, "project.create", f"project {project.name}")
    return project


def change(caller: auth.Caller, name: str, body: project_bodies.ProjectLimits) -> rows.Project:
    """Replace the limits of a project.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        project = projects.change(tx, name, projects.Limits(**body.model_dump()))
        caller.audit(tx, "project.change", f"project {name}", **body.model_dump())
    return project
