"""Requests that are kept: batches, item by item, and templates of the key that saved them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import columns, models
from server.store import jobs, rows, statements


def made_before(
    tx: orm.Session, key_id: int, idempotency: jobs.IdempotencyKey
) -> rows.Batch | None:
    """The batch of an earlier request with this idempotency key; None if there is none.

    Raises:
        Conflict: that request was another one.
    """
    row = models.Batch
    batch = tx.scalar(
        sa.select(row).where(row.key_id == key_id, row.idempotency_key == idempotency.key)
    )
    if batch is None:
        return None
    if batch.request_sha256 != idempotency.request_sha256:
        raise errors.Conflict(
            "this Idempotency-Key was used for another batch: take a new key for a new batch"
        )
    return rows.Batch.of(batch)


def create_batch(
    tx: orm.Session,
    key_id: int,
    items: Sequence[Mapping[str, Any]],
    idempotency: jobs.IdempotencyKey | None,
) -> rows.Batch:
    """Write a batch whose items are submitted, or return the one that the same request made.

    Raises:
        Conflict: the idempotency key was used for another request.
    """
    # requests of one key come one after the other
    tx.execute(sa.select(models.Key.id).where(models.Key.id == key_id).with_for_update())
    if idempotency is not None:
        earlier = made_before(tx, key_id, idempotency)
        if earlier is not None:
            return earlier
    batch = models.Batch(
        key_id=key_id,
        idempotency_key=None if idempotency is None else idempotency.key,
        request_sha256="" if idempotency is None else idempotency.request_sha256,
        items=[dict(item) for item in items],
        created_at=columns.db_now(),
    )
    return rows.Batch.of(statements.add(tx, batch))


def get_batch(tx: orm.Session, batch_id: int, key_id: int | None) -> rows.Batch:
    """A batch of a key; of any, if the key is None.

    Raises:
        NotFound
    """
    batch = tx.get(models.Batch, batch_id)
    if batch is None or key_id not in (None, batch.key_id):
        raise errors.NotFound(f"there is no batch {batch_id}")
    return rows.Batch.of(batch)


def page_of_batches(
    tx: orm.Session, key_id: int | None, limit: int, before: int | None = None
) -> list[rows.Batch]:
    """Batches of a key (None: of any), newest first; `before` is the last number of the page
    before.
    """
    batch = models.Batch
    query = sa.select(batch).order_by(batch.id.desc()).limit(limit)
    if key_id is not None:
        query = query.where(batch.key_id == key_id)
    if before is not None:
        query = query.where(batch.id < before)
    return [rows.Batch.of(row) for row in tx.scalars(query)]


#: Templates of a key.
MOST_TEMPLATES = 200


def save_template(
    tx: orm.Session, key_id: int, name: str, job: Mapping[str, Any]
) -> rows.Template:
    """Save a template; one of that name is replaced.

    Raises:
        QuotaExceeded: the key has `MOST` templates.
    """
    # requests of one key come one after the other
    tx.execute(sa.select(models.Key.id).where(models.Key.id == key_id).with_for_update())
    row = models.Template
    tx.execute(sa.delete(row).where(row.key_id == key_id, row.name == name))
    if statements.count(tx, row, row.key_id == key_id) >= MOST_TEMPLATES:
        raise errors.QuotaExceeded(f"a key may have {MOST_TEMPLATES} templates: delete some")
    template = row(key_id=key_id, name=name, job=dict(job), created_at=columns.db_now())
    return rows.Template.of(statements.add(tx, template))


def templates(tx: orm.Session, key_id: int) -> list[rows.Template]:
    """The templates of a key, by name."""
    row = models.Template
    templates = tx.scalars(sa.select(row).where(row.key_id == key_id).order_by(row.name))
    return [rows.Template.of(template) for template in templates]


def get_template(tx: orm.Session, key_id: int, name: str) -> rows.Template:
    """A template of a key.

    Raises:
        NotFound
    """
    row = models.Template
    template = tx.scalar(sa.select(row).where(row.key_id == key_id, row.name == name))
    if template is None:
        raise errors.NotFound(f"this key has no template {name!r}")
    return rows.Template.of(template)


def delete_template(tx: orm.Session, key_id: int, name: str) -> None:
    """Remove a template of a key.

    Raises:
        NotFound
    """
    template = get_template(tx, key_id, name)
    tx.execute(sa.delete(models.Template).where(models.Template.id == template.id))
