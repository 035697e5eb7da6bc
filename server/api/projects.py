"""`/v1/projects` and `/v1/webhooks`: teams, their limits, and who is told of their jobs."""

from __future__ import annotations

from typing import Annotated, Literal

import fastapi

from server import teams
from server.store import projects, webhooks
from server.web import auth, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/projects", tags=["projects"])

_Name = Annotated[str, fastapi.Path(max_length=64, examples=["default"])]


@router.get("")
def every(caller: auth.Reader) -> response_bodies.Listed[response_bodies.Project]:
    """The projects that the key sees: its own; an admin all."""
    with caller.read() as tx:
        return response_bodies.listed(response_bodies.Project, projects.every(tx))


@router.post("", status_code=201)
def create(body: request_bodies.NewProject, caller: auth.Admin) -> response_bodies.Project:
    """Make a project; its name is permanent."""
    return response_bodies.Project.model_validate(teams.create_project(caller, body))


@router.get("/{name}")
def get(name: _Name, caller: auth.Reader) -> response_bodies.ProjectUsage:
    """One project, and what it has now."""
    with caller.read() as tx:
        project = projects.get(tx, name)
        usage = projects.usage(tx, name)
    limits = response_bodies.Project.model_validate(project).model_dump()
    return response_bodies.ProjectUsage(
        **limits, n_running_jobs=usage.n_jobs, n_bytes=usage.n_bytes
    )


@router.put("/{name}")
def change(
    name: _Name, body: request_bodies.ProjectLimits, caller: auth.Admin
) -> response_bodies.Project:
    """Replace the limits of a project; a limit that is left out is the service's."""
    return response_bodies.Project.model_validate(teams.limit_project(caller, name, body))


webhooks_router = fastapi.APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

_Id = Annotated[int, fastapi.Path(ge=1, le=request_bodies.MAX_INT, examples=[3])]
_State = Literal["pending", "delivered", "dead"]


@webhooks_router.get("", name="every")
def every_webhook(caller: auth.Manager) -> response_bodies.Listed[response_bodies.Webhook]:
    """The webhooks of the key's project; an admin sees all."""
    with caller.read() as tx:
        return response_bodies.listed(response_bodies.Webhook, webhooks.every(tx))


@webhooks_router.post("", status_code=201, name="create")
def create_webhook(
    body: request_bodies.NewWebhook, caller: auth.Manager
) -> response_bodies.MadeWebhook:
    """Make a webhook; the response is the only place where its secret ever is."""
    made = teams.create_webhook(caller, body)
    return response_bodies.MadeWebhook.model_validate(made)


@webhooks_router.delete("/{webhook_id}", status_code=204)
def delete(webhook_id: _Id, caller: auth.Manager) -> None:
    """Remove a webhook and its notifications."""
    teams.delete_webhook(caller, webhook_id)


@webhooks_router.post("/{webhook_id}/test", status_code=202)
def send_test(webhook_id: _Id, caller: auth.Manager) -> response_bodies.Delivery:
    """Send a notification of the type `test`; the list of deliveries says what came of it."""
    with caller.write() as tx:
        return response_bodies.Delivery.model_validate(webhooks.send_test(tx, webhook_id))


@webhooks_router.get("/{webhook_id}/deliveries")
def deliveries(
    webhook_id: _Id,
    caller: auth.Manager,
    state: Annotated[_State | None, fastapi.Query(description="only these")] = None,
    limit: request_bodies.Limit = 100,
    after: request_bodies.After = None,
) -> response_bodies.Page[response_bodies.Delivery]:
    """Notifications, newest first; delivered and dead ones are listed for 30 days."""
    with caller.read() as tx:
        page = webhooks.deliveries(tx, webhook_id, state, limit, after)
    items = [response_bodies.Delivery.model_validate(delivery) for delivery in page]
    return response_bodies.Page(items=items, next=items[-1].id if len(items) == limit else None)


@webhooks_router.post("/{webhook_id}/deliveries/{delivery_id}/retry", status_code=202)
def retry(webhook_id: _Id, delivery_id: _Id, caller: auth.Manager) -> response_bodies.Delivery:
    """Send a notification again, with all its tries."""
    with caller.write() as tx:
        sent = webhooks.retry(tx, webhook_id, delivery_id)
    return response_bodies.Delivery.model_validate(sent)
