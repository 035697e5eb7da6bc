"""Webhooks and their notifications, which are written in the transaction of what they report.

A notification is sent until the receiver accepts it: at least once, by whichever server leases it
first, each try later than the one before. One that is never accepted ends as `dead`.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, models
from server.store import rows, statements

#: States that webhooks can ask for.
REPORTED = tuple(
    states.State(name)
    for name in ("queued", "running", "paused", "succeeded", "failed", "cancelled")
)

#: Webhooks of a project.
MAX_WEBHOOKS = 20

_SECRET_PREFIX = "whsec_"

#: What a notification says of a job, besides its state.
_JOB_FIELDS = (
    "id",
    "project",
    "name",
    "op",
    "target",
    "n_trials",
    "best_us",
    "unscheduled_us",
    "reason",
    "error",
    "message",
)


@dataclasses.dataclass(frozen=True, slots=True)
class CreatedWebhook:
    """A new webhook; `secret` is shown once."""

    webhook: rows.Webhook
    secret: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """A notification that this process may send until its lease is over."""

    id: int
    attempts: int
    event_id: str
    url: str
    body: str
    secret: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What came of a try: an HTTP status, or why there is none."""

    status: int | None
    error: str | None

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver took the notification."""
        return self.status is not None and 200 <= self.status < 300


def create(
    tx: orm.Session, project: str, url: str, reported: list[states.State], key_id: int | None
) -> CreatedWebhook:
    """Make a webhook.

    Raises:
        QuotaExceeded: the project has `MAX_WEBHOOKS`.
    """
    tx.execute(
        sa.select(models.Project.name).where(models.Project.name == project).with_for_update()
    )
    if statements.count(tx, models.Webhook, models.Webhook.project == project) >= MAX_WEBHOOKS:
        raise errors.QuotaExceeded(
            f"a project may have {MAX_WEBHOOKS} webhooks: delete one that is not needed"
        )
    secret = _SECRET_PREFIX + secrets.token_urlsafe(32)
    row = models.Webhook(
        project=project,
        url=url,
        states=[str(state) for state in reported],
        secret=secret,
        key_id=key_id,
        created_at=columns.db_now(),
    )
    return CreatedWebhook(rows.Webhook.of(statements.add(tx, row)), secret)


def every(tx: orm.Session) -> list[rows.Webhook]:
    """All webhooks, oldest first."""
    query = sa.select(models.Webhook).order_by(models.Webhook.id)
    return [rows.Webhook.of(row) for row in tx.scalars(query)]


def get(tx: orm.Session, webhook_id: int) -> rows.Webhook:
    """One webhook.

    Raises:
        NotFound
    """
    return rows.Webhook.of(_get(tx, webhook_id))


def delete(tx: orm.Session, webhook_id: int) -> None:
    """Remove a webhook and its notifications.

    Raises:
        NotFound
    """
    _get(tx, webhook_id)
    tx.execute(sa.delete(models.Webhook).where(models.Webhook.id == webhook_id))


def notify(tx: orm.Session, job_id: int, seq: int, state: states.State) -> None:
    """Write what the webhooks of a job's project report of a move to a state."""
    if state not in REPORTED:
        return
    job, webhook = models.Job, models.Webhook
    query = (
        sa.select(webhook.id, webhook.states)
        .join(job, job.project == webhook.project)
        .where(job.id == job_id)
    )
    webhook_ids = [number for number, reported in tx.execute(query) if state in reported]
    if not webhook_ids:
        return
    fields = sa.select(
        *(getattr(job, name) for name in _JOB_FIELDS),
        sa.type_coerce(columns.db_now(), columns.UtcDateTime()).label("at"),
    )
    content = dict(tx.execute(fields.where(job.id == job_id)).one()._mapping)
    at = content.pop("at")
    event_id = f"job-{job_id}-{seq}"
    body = {
        "id": event_id,
        "type": f"job.{state}",
        "at": at.isoformat(),
        "job": {**content, "state": str(state)},
    }
    for number in webhook_ids:
        _insert(tx, number, content["project"], event_id, body)


def send_test(tx: orm.Session, webhook_id: int) -> rows.Delivery:
    """Write a notification that reports nothing, to try a webhook.

    Raises:
        NotFound
    """
    webhook = _get(tx, webhook_id)
    event_id = f"test-{secrets.token_hex(8)}"
    body = {"id": event_id, "type": "test", "job": None}
    return rows.Delivery.of(_insert(tx, webhook.id, webhook.project, event_id, body))


def deliveries(
    tx: orm.Session,
    webhook_id: int,
    state: str | None = None,
    limit: int = 100,
    before: int | None = None,
) -> list[rows.Delivery]:
    """Notifications of a webhook, newest first; `before` is the last number of the page before.

    Raises:
        NotFound
    """
    _get(tx, webhook_id)
    delivery = models.Delivery
    query = sa.select(delivery).where(delivery.webhook_id == webhook_id)
    if state is not None:
        query = query.where(delivery.state == state)
    if before is not None:
        query = query.where(delivery.id < before)
    listed = tx.scalars(query.order_by(delivery.id.desc()).limit(limit))
    return [rows.Delivery.of(row) for row in listed]


def retry(tx: orm.Session, webhook_id: int, delivery_id: int) -> rows.Delivery:
    """Send a notification again, from its first try on; one that waits is sent now.

    Raises:
        NotFound
    """
    _get(tx, webhook_id)
    row = tx.get(models.Delivery, delivery_id, with_for_update=True)
    if row is None or row.webhook_id != webhook_id:
        raise errors.NotFound(f"webhook {webhook_id} has no delivery {delivery_id}")
    row.state, row.attempts, row.delivered_at = "pending", 0, None
    row.not_before = columns.db_now()
    tx.flush()
    tx.refresh(row)
    return rows.Delivery.of(row)


def lease(tx: orm.Session, limit: int, lease_s: float) -> list[Due]:
    """Take notifications that are due, the oldest of each webhook that has none under way."""
    delivery, webhook = models.Delivery, models.Webhook
    other = orm.aliased(delivery)
    under_way = sa.select(other.webhook_id).where(
        other.state == "pending", other.leased_until > columns.db_now()
    )
    first = (
        sa.select(sa.func.min(delivery.id))
        .where(_is_due(), delivery.webhook_id.not_in(under_way))
        .group_by(delivery.webhook_id)
    )
    query = (
        sa.select(delivery, webhook.url, webhook.secret)
        .join(webhook, webhook.id == delivery.webhook_id)
        .where(delivery.id.in_(first), _is_due())
        .order_by(delivery.id)
        .limit(limit)
        .with_for_update(of=delivery, skip_locked=True)
    )
    due = []
    for row, url, secret in tx.execute(query.execution_options(populate_existing=True)).all():
        row.attempts += 1
        row.leased_until = columns.db_now(lease_s)
        due.append(Due(row.id, row.attempts, row.event_id, url, row.body, secret))
    tx.flush()
    return due


def any_due(tx: orm.Session) -> bool:
    """Whether there is anything to send."""
    query = sa.select(models.Delivery.id).where(_is_due())
    return tx.scalar(query.limit(1)) is not None


def _is_due() -> sa.ColumnElement[bool]:
    delivery, now = models.Delivery, columns.db_now()
    is_free = sa.or_(delivery.leased_until.is_(None), delivery.leased_until <= now)
    return sa.and_(delivery.state == "pending", delivery.not_before <= now, is_free)


def note(tx: orm.Session, due: Due, reply: Reply, retry_after_s: float | None) -> None:
    """Write what came of a try: delivered, to be tried again later, or (None) dead.

    A sender whose lease was over, so that another one tried since, writes nothing.
    """
    delivery = models.Delivery
    values: dict[str, Any] = {
        "leased_until": None,
        "last_status": reply.status,
        "last_error": reply.error,
    }
    if reply.is_accepted:
        values |= {"state": "delivered", "delivered_at": columns.db_now()}
    elif retry_after_s is None:
        values |= {"state": "dead"}
    else:
        values |= {"not_before": columns.db_now(retry_after_s)}
    same = (delivery.id == due.id, delivery.attempts == due.attempts, delivery.state == "pending")
    statements.update(tx, delivery, *same, **values)


def forget_old(tx: orm.Session, age_s: float) -> None:
    """Remove notifications that ended so long ago."""
    delivery = models.Delivery
    is_old = delivery.created_at < columns.db_now(-age_s)
    statements.delete(tx, delivery, delivery.state != "pending", is_old)


def _get(tx: orm.Session, webhook_id: int) -> models.Webhook:
    return statements.get(tx, models.Webhook, webhook_id, f"there is no webhook {webhook_id}")


def _insert(
    tx: orm.Session, webhook_id: int, project: str, event_id: str, body: dict[str, Any]
) -> models.Delivery:
    row = models.Delivery(
        webhook_id=webhook_id,
        project=project,
        event_id=event_id,
        body=json.dumps(body, separators=(",", ":")),
        created_at=columns.db_now(),
        not_before=columns.db_now(),
    )
    return statements.add(tx, row)
