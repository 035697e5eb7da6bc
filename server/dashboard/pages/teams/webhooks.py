"""Webhooks of the viewer's project: who is told of its jobs, and what came of it.

A new webhook's secret is on the page after the form and nowhere else.
"""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import errors, teams
from server.dashboard import render
from server.dashboard.pages import logins
from server.dashboard.pages.teams import forms
from server.store import keys, webhooks
from server.web import auth, dependencies, project_bodies, request_bodies

router = fastapi.APIRouter(
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


@router.get("")
def every(request: fastapi.Request, viewer: forms.Submitter) -> fastapi.Response:
    """All webhooks, and a form for another."""
    ticked = tuple(project_bodies.NewWebhook.model_fields["states"].default)
    return _list(request, viewer, forms.Filled(ticked=ticked))


@router.post("")
async def create(
    request: fastapi.Request, viewer: forms.Submitter, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Make a webhook and show its secret, once."""
    form = await logins.checked_form(request, viewer)
    texts, ticked = forms.texts_of(form), tuple(form.get("state", []))
    try:
        body = project_bodies.NewWebhook.model_validate(
            {"url": texts.get("url", ""), "states": ticked}
        )
        made = await anyio.to_thread.run_sync(teams.create_webhook, services, viewer, body)
    except pydantic.ValidationError as error:
        wrong = forms.wrong_of(error)
    except (errors.InvalidRequest, errors.QuotaExceeded) as error:
        wrong = {"url": str(error)}
    else:
        return render.page(request, "teams/webhook_made.html", viewer, made=made)
    filled = forms.Filled(texts, ticked, wrong)
    return await anyio.to_thread.run_sync(_list, request, viewer, filled)


@router.get("/{webhook_id}")
def one(
    request: fastapi.Request,
    webhook_id: request_bodies.Id,
    viewer: forms.Submitter,
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


@router.post("/{webhook_id}/test")
async def send_test(
    request: fastapi.Request, webhook_id: request_bodies.Id, viewer: forms.Submitter
) -> fastapi.Response:
    """Send a notification that reports nothing."""
    await logins.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.test_webhook, viewer, webhook_id)
    return responses.RedirectResponse(f"{WEBHOOKS}/{webhook_id}", 303)


@router.post("/{webhook_id}/delete")
async def delete(
    request: fastapi.Request, webhook_id: request_bodies.Id, viewer: forms.Submitter
) -> fastapi.Response:
    """Remove a webhook and its notifications."""
    await logins.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.delete_webhook, viewer, webhook_id)
    return responses.RedirectResponse(WEBHOOKS, 303)


@router.post("/{webhook_id}/deliveries/{delivery_id}/retry")
async def retry(
    request: fastapi.Request,
    webhook_id: request_bodies.Id,
    delivery_id: request_bodies.Id,
    viewer: forms.Submitter,
) -> fastapi.Response:
    """Send a notification again."""
    await logins.checked_form(request, viewer)
    await anyio.to_thread.run_sync(teams.retry_delivery, viewer, webhook_id, delivery_id)
    return responses.RedirectResponse(f"{WEBHOOKS}/{webhook_id}", 303)


def _list(request: fastapi.Request, viewer: auth.Caller, filled: forms.Filled) -> fastapi.Response:
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
