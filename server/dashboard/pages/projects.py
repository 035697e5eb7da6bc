"""Projects and webhooks: what projects may have and use, whose keys see them, who is told."""

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
from server.dashboard.pages import access, batches
from server.store import keys, projects, rows, webhooks
from server.web import auth, dependencies, request_bodies

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
    return _list(request, viewer, services, batches.Filled())


@router.post("")
async def create(
    request: fastapi.Request, viewer: access.Admin, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Make a project and show it."""
    texts = batches.texts_of(await access.checked_form(request, viewer))
    try:
        body = request_bodies.NewProject.model_validate(
            {"name": texts.get("name", ""), **_limits(texts)}
        )
        made = await anyio.to_thread.run_sync(teams.create_project, viewer, body)
    except (pydantic.ValidationError, errors.Conflict) as error:
        filled = batches.Filled(texts, wrong=_wrong(error))
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
    request: fastapi.Request, name: _Name, viewer: access.Admin, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Replace the limits; empty fields are the service's."""
    texts = batches.texts_of(await access.checked_form(request, viewer))
    try:
        body = request_bodies.ProjectLimits.model_validate(_limits(texts))
    except pydantic.ValidationError as error:
        filled = batches.Filled(texts, wrong=_wrong(error))
        return await anyio.to_thread.run_sync(_one, request, name, viewer, services, filled)
    await anyio.to_thread.run_sync(teams.limit_project, viewer, name, body)
    return responses.RedirectResponse(f"{PROJECTS}/{name}", 303)


def _list(
    request: fastapi.Request,
    viewer: auth.Caller,
    services: dependencies.Services,
    filled: batches.Filled,
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
    refused: batches.Filled | None,
) -> fastapi.Response:
    with viewer.read() as tx:
        project = projects.get(tx, name)
        usage = projects.usage(tx, name)
        members = [key for key in keys.every(tx) if key.project == name]
    now = datetime.datetime.now(datetime.UTC)
    filled = refused or batches.Filled(_texts_of(project))
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
        for name, text in batches.wrong_of(error).items()
    }


webhooks_router = fastapi.APIRouter(
    prefix="/dashboard/webhooks", route_class=render.Page, include_in_schema=False
)

WEBHOOKS = "/dashboard/webhooks"
DELIVERIES_LIMIT = 50
#: States of deliveries, and what they mean.
DELIVERY_STATES = {
    "pending": "waits for its next try",
    "delivered": "was accepted",
    "dead": "was never accepted",
}


@webhooks_router.get("")
def every_webhook(request: fastapi.Request, viewer: batches.Submitter) -> fastapi.Response:
    """All webhooks, and a form for another."""
    ticked = tuple(request_bodies.NewWebhook.model_fields["states"].default)
    return _webhooks_page(request, viewer, batches.Filled(ticked=ticked))


@webhooks_router.post("")
async def create_webhook(
    request: fastapi.Request, viewer: batches.Submitter, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Make a webhook and show its secret, once."""
    form = await access.checked_form(request, viewer)
    texts, ticked = batches.texts_of(form), tuple(form.get("state", []))
    try:
        body = request_bodies.NewWebhook.model_validate(
            {"url": texts.get("url", ""), "states": ticked}
        )
        made = await anyio.to_thread.run_sync(teams.create_webhook, services, viewer, body)
    except pydantic.ValidationError as error:
        wrong = batches.wrong_of(error)
    except (errors.InvalidRequest, errors.QuotaExceeded) as error:
        wrong = {"url": str(error)}
    else:
        return render.page(request, "teams/webhook_made.html", viewer, made=made)
    filled = batches.Filled(texts, ticked, wrong)
    return await anyio.to_thread.run_sync(_webhooks_page, request, viewer, filled)


@webhooks_router.get("/{webhook_id}")
def one_webhook(
    request: fastapi.Request,
    webhook_id: request_bodies.Id,
    viewer: batches.Submitter,
    state: Annotated[str, fastapi.Query(max_length=20)] = "",
    after: request_bodies.After = None,
) -> fastapi.Response:
    """A webhook and its notifications, newest first."""
    chosen = state if state in DELIVERY_STATES else None
    with viewer.read() as tx:
        webhook = webhooks.get(tx, webhook_id)
        listed = webhooks.deliveries(tx, webhook_id, chosen, DELIVERIES_LIMIT + 1, after)
        owners = keys.names(tx, [webhook.key_id])
    return render.page(
        request,
        "teams/webhook.html",
        viewer,
        webhook=webhook,
        owner=owners.get(webhook.key_id) if webhook.key_id is not None else None,
        deliveries=listed[:DELIVERIES_LIMIT],
        next=listed[DELIVERIES_LIMIT - 1].id if len(listed) > DELIVERIES_LIMIT else None,
        after=after,
        state=chosen or "",
        states=DELIVERY_STATES,
    )


@webhooks_router.post("/{webhook_id}/test")
async def send_test(
    request: fastapi.Request, webhook_id: request_bodies.Id, viewer: batches.Submitter
) -> fastapi.Response:
    """Send a notification that reports nothing."""
    await access.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.test_webhook, viewer, webhook_id)
    return responses.RedirectResponse(f"{WEBHOOKS}/{webhook_id}", 303)


@webhooks_router.post("/{webhook_id}/delete")
async def delete(
    request: fastapi.Request, webhook_id: request_bodies.Id, viewer: batches.Submitter
) -> fastapi.Response:
    """Remove a webhook and its notifications."""
    await access.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.delete_webhook, viewer, webhook_id)
    return responses.RedirectResponse(WEBHOOKS, 303)


@webhooks_router.post("/{webhook_id}/deliveries/{delivery_id}/retry")
async def retry(
    request: fastapi.Request,
    webhook_id: request_bodies.Id,
    delivery_id: request_bodies.Id,
    viewer: batches.Submitter,
) -> fastapi.Response:
    """Send a notification again."""
    await access.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.retry_delivery, viewer, webhook_id, delivery_id)
    return responses.RedirectResponse(f"{WEBHOOKS}/{webhook_id}", 303)


def _webhooks_page(
    request: fastapi.Request, viewer: auth.Caller, filled: batches.Filled
) -> fastapi.Response:
    with viewer.read() as tx:
        visible = webhooks.every(tx)
        owners = keys.names(tx, (webhook.key_id for webhook in visible))
    return render.page(
        request,
        "teams/webhooks.html",
        viewer,
        filled.status,
        webhooks=visible,
        owners=owners,
        reported=webhooks.REPORTED,
        filled=filled,
    )
