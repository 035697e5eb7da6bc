"""Projects and webhooks: what projects may have and use, whose keys see them, who is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import fastapi
import pydantic
from starlette import responses

from server import errors, teams
from server.dashboard import render
from server.dashboard.pages import access
from server.store import keys, projects, rows, webhooks
from server.web import request_bodies

router = render.router("/dashboard/projects")

PROJECTS = "/dashboard/projects"
#: Bytes of the unit in which forms have sizes.
_GB = 10**9
#: Fields that the form has in other units than the API, which has other names for them.
_FIELDS = {"max_bytes": "max_gb"}
_LIMITS = ("max_running_jobs", "max_trials", "retention_days")

_Name = Annotated[str, fastapi.Path(max_length=64)]


@router.get("")
def every(viewer: render.Viewer) -> fastapi.Response:
    """The projects that the viewer sees, with what they use."""
    return _list(viewer, access.Filled())


@router.post("")
def create(viewer: render.Admin, form: access.Form) -> fastapi.Response:
    """Make a project and show it."""
    texts = access.texts_of(form)
    try:
        body = request_bodies.NewProject.model_validate(
            {"name": texts.get("name", ""), **_limits(texts)}
        )
        made = teams.create_project(viewer, body)
    except pydantic.ValidationError as error:
        wrong = access.wrong_of(error, _FIELDS)
    except errors.Conflict as error:
        wrong = {"name": str(error)}
    else:
        return responses.RedirectResponse(f"{PROJECTS}/{made.name}", 303)
    return _list(viewer, access.Filled(texts, wrong=wrong))


@router.get("/{name}")
def one(name: _Name, viewer: render.Viewer) -> fastapi.Response:
    """A project with its limits, its usage and, for administrators, its keys."""
    return _one(name, viewer, None)


@router.post("/{name}")
def change(name: _Name, viewer: render.Admin, form: access.Form) -> fastapi.Response:
    """Replace the limits; empty fields are the service's."""
    texts = access.texts_of(form)
    try:
        body = request_bodies.ProjectLimits.model_validate(_limits(texts))
    except pydantic.ValidationError as error:
        filled = access.Filled(texts, wrong=access.wrong_of(error, _FIELDS))
        return _one(name, viewer, filled)
    teams.limit_project(viewer, name, body)
    return responses.RedirectResponse(f"{PROJECTS}/{name}", 303)


def _list(viewer: render.LoggedIn, filled: access.Filled) -> fastapi.Response:
    with viewer.read() as tx:
        visible = projects.every(tx)
        usages = projects.usages(tx, [project.name for project in visible])
        members = keys.every(tx) if viewer.can("admin") else []
    n_keys = {
        project.name: sum(
            key.project == project.name and access.state(key) == "valid" for key in members
        )
        for project in visible
    }
    return viewer.page(
        "teams/projects.html",
        filled.status,
        projects=[(project, usages[project.name], n_keys[project.name]) for project in visible],
        is_admin=viewer.can("admin"),
        filled=filled,
        settings=viewer.services.settings,
    )


def _one(name: str, viewer: render.LoggedIn, refused: access.Filled | None) -> fastapi.Response:
    with viewer.read() as tx:
        project = projects.get(tx, name)
        usage = projects.usage(tx, name)
        members = [key for key in keys.every(tx) if key.project == name]
    filled = refused or access.Filled(_texts_of(project))
    return viewer.page(
        "teams/project.html",
        filled.status,
        project=project,
        usage=usage,
        keys=access.described(members),
        is_admin=viewer.can("admin"),
        filled=filled,
        settings=viewer.services.settings,
    )


def _limits(texts: Mapping[str, str]) -> dict[str, Any]:
    """The limits as the API's body; empty fields are left out."""
    limits: dict[str, Any] = {name: texts[name] for name in _LIMITS if texts.get(name)}
    if texts.get("max_gb"):
        limits["max_bytes"] = access.scaled(texts["max_gb"], _GB)
    return limits


def _texts_of(project: rows.Project) -> dict[str, str]:
    """The fields of the form for a project's limits."""
    values = {name: getattr(project, name) for name in _LIMITS}
    texts = {name: str(value) for name, value in values.items() if value is not None}
    if project.max_bytes is not None:
        texts["max_gb"] = f"{project.max_bytes / _GB:.9g}"
    return texts


webhooks_router = render.router("/dashboard/webhooks")

WEBHOOKS = "/dashboard/webhooks"
DELIVERIES_LIMIT = 50
#: States of deliveries, and what they mean.
DELIVERY_STATES = {
    "pending": "waits for its next try",
    "delivered": "was accepted",
    "dead": "was never accepted",
}


@webhooks_router.get("")
def every_webhook(viewer: render.Submitter) -> fastapi.Response:
    """All webhooks, and a form for another."""
    ticked = tuple(request_bodies.NewWebhook.model_fields["states"].default)
    return _webhooks_page(viewer, access.Filled(ticked=ticked))


@webhooks_router.post("")
def create_webhook(viewer: render.Submitter, form: access.Form) -> fastapi.Response:
    """Make a webhook and show its secret, once."""
    texts, ticked = access.texts_of(form), tuple(form.get("state", []))
    try:
        body = request_bodies.NewWebhook.model_validate(
            {"url": texts.get("url", ""), "states": ticked}
        )
        made = teams.create_webhook(viewer, body)
    except pydantic.ValidationError as error:
        wrong = access.wrong_of(error, {})
    except (errors.InvalidRequest, errors.QuotaExceeded) as error:
        wrong = {"url": str(error)}
    else:
        return viewer.page("teams/webhook_made.html", made=made)
    return _webhooks_page(viewer, access.Filled(texts, ticked, wrong))


@webhooks_router.get("/{webhook_id}")
def one_webhook(
    webhook_id: request_bodies.Id,
    viewer: render.Submitter,
    state: Annotated[str, fastapi.Query(max_length=20)] = "",
    after: request_bodies.After = None,
) -> fastapi.Response:
    """A webhook and its notifications, newest first."""
    chosen = state if state in DELIVERY_STATES else None
    with viewer.read() as tx:
        webhook = webhooks.get(tx, webhook_id)
        listed = webhooks.deliveries(tx, webhook_id, chosen, DELIVERIES_LIMIT + 1, after)
        owners = keys.names(tx, [webhook.key_id])
    return viewer.page(
        "teams/webhook.html",
        webhook=webhook,
        owner=owners.get(webhook.key_id) if webhook.key_id is not None else None,
        deliveries=listed[:DELIVERIES_LIMIT],
        next=listed[DELIVERIES_LIMIT - 1].id if len(listed) > DELIVERIES_LIMIT else None,
        after=after,
        state=chosen or "",
        states=DELIVERY_STATES,
    )


@webhooks_router.post("/{webhook_id}/test")
def send_test(
    webhook_id: request_bodies.Id, viewer: render.Submitter, _: access.Form
) -> fastapi.Response:
    """Send a notification that reports nothing."""
    with viewer.write() as tx:
        webhooks.send_test(tx, webhook_id)
    return responses.RedirectResponse(f"{WEBHOOKS}/{webhook_id}", 303)


@webhooks_router.post("/{webhook_id}/delete")
def delete(
    webhook_id: request_bodies.Id, viewer: render.Submitter, _: access.Form
) -> fastapi.Response:
    """Remove a webhook and its notifications."""
    teams.delete_webhook(viewer, webhook_id)
    return responses.RedirectResponse(WEBHOOKS, 303)


@webhooks_router.post("/{webhook_id}/deliveries/{delivery_id}/retry")
def retry(
    webhook_id: request_bodies.Id,
    delivery_id: request_bodies.Id,
    viewer: render.Submitter,
    _: access.Form,
) -> fastapi.Response:
    """Send a notification again."""
    with viewer.write() as tx:
        webhooks.retry(tx, webhook_id, delivery_id)
    return responses.RedirectResponse(f"{WEBHOOKS}/{webhook_id}", 303)


def _webhooks_page(viewer: render.LoggedIn, filled: access.Filled) -> fastapi.Response:
    with viewer.read() as tx:
        visible = webhooks.every(tx)
        owners = keys.names(tx, (webhook.key_id for webhook in visible))
    return viewer.page(
        "teams/webhooks.html",
        filled.status,
        webhooks=visible,
        owners=owners,
        reported=webhooks.REPORTED,
        filled=filled,
    )
