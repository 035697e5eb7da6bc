"""`/v1/webhooks`: who is told of changes of a project's jobs, and what came of it.

A key needs both `read` and `submit`: it says where the project's data goes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import fastapi

from server import teams
from server.store import rows, webhooks
from server.web import auth, dependencies, project_bodies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

_Id = Annotated[int, fastapi.Path(ge=1, le=request_bodies.MAX_INT, examples=[3])]
_State = Literal["pending", "delivered", "dead"]


@router.get("")
def every(caller: auth.Manager) -> response_bodies.Listed[project_bodies.Webhook]:
    """The webhooks of the key's project; an admin sees all."""
    with caller.read() as tx:
        visible = webhooks.every(tx)
    return response_bodies.Listed(items=[_webhook(webhook) for webhook in visible])


@router.post("", status_code=201)
def create(
    body: project_bodies.NewWebhook, caller: auth.Manager, services: dependencies.ServicesDep
) -> project_bodies.MadeWebhook:
    """Make a webhook; the response is the only place where its secret ever is."""
    made = teams.create_webhook(services, caller, body)
    return project_bodies.MadeWebhook(webhook=_webhook(made.webhook), secret=made.secret)


@router.delete("/{webhook_id}", status_code=204)
def delete(webhook_id: _Id, caller: auth.Manager) -> None:
    """Remove a webhook and its notifications."""
    teams.delete_webhook(caller, webhook_id)


@router.post("/{webhook_id}/test", status_code=202)
def send_test(webhook_id: _Id, caller: auth.Manager) -> project_bodies.Delivery:
    """Send a notification of the type `test`; the list of deliveries says what came of it."""
    return project_bodies.Delivery.model_validate(teams.test_webhook(caller, webhook_id))


@router.get("/{webhook_id}/deliveries")
def deliveries(
    webhook_id: _Id,
    caller: auth.Manager,
    state: Annotated[_State | None, fastapi.Query(description="only these")] = None,
    limit: request_bodies.Limit = 100,
    after: request_bodies.After = None,
) -> response_bodies.Page[project_bodies.Delivery]:
    """Notifications, newest first; delivered and dead ones are listed for 30 days."""
    with caller.read() as tx:
        page = webhooks.deliveries(tx, webhook_id, state, limit, after)
    items = [project_bodies.Delivery.model_validate(delivery) for delivery in page]
    return response_bodies.Page(items=items, next=items[-1].id if len(items) == limit else None)


@router.post("/{webhook_id}/deliveries/{delivery_id}/retry", status_code=202)
def retry(webhook_id: _Id, delivery_id: _Id, caller: auth.Manager) -> project_bodies.Delivery:
    """Send a notification again, with all its tries."""
    sent = teams.retry_delivery(caller, webhook_id, delivery_id)
    return project_bodies.Delivery.model_validate(sent)


def _webhook(webhook: rows.Webhook) -> project_bodies.Webhook:
    return project_bodies.Webhook.model_validate(webhook)
