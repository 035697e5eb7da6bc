"""Webhooks of the caller's project: made, removed and tried."""

from __future__ import annotations

from server.store import rows, webhooks
from server.web import auth, dependencies, project_bodies
from server.webhooks import addresses


def create(
    services: dependencies.Services, caller: auth.Caller, body: project_bodies.NewWebhook
) -> webhooks.Made:
    """Make a webhook; its secret is in the result and nowhere else.

    Raises:
        InvalidRequest: it is no address that notifications may go to.
        QuotaExceeded: the project has as many as it may have.
    """
    addresses.check_url(body.url, services.settings.webhook_allow_private)
    with caller.write() as tx:
        made = webhooks.create(tx, caller.key.project, body.url, body.reported, caller.key.id)
        caller.audit(tx, "webhook.create", f"webhook {made.webhook.id}", url=body.url)
    return made


def delete(caller: auth.Caller, webhook_id: int) -> None:
    """Remove a webhook and its notifications.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        webhooks.delete(tx, webhook_id)
        caller.audit(tx, "webhook.delete", f"webhook {webhook_id}")


def send_test(caller: auth.Caller, webhook_id: int) -> rows.Delivery:
    """Send a notification that reports nothing.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        return webhooks.send_test(tx, webhook_id)


def retry(caller: auth.Caller, webhook_id: int, delivery_id: int) -> rows.Delivery:
    """Send a notification again, with all its tries.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        return webhooks.retry(tx, webhook_id, delivery_id)
