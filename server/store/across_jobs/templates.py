"""Templates: named requests for jobs, of the key that saved them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import columns, models
from server.store import rows

#: Templates of a key.
MOST = 200


def save(tx: orm.Session, key_id: int, name: str, job: Mapping[str, Any]) -> rows.Template:
    """Save a template; one of that name is replaced.

    Raises:
        QuotaExceeded: the key has `MOST` templates.
    """
    # requests of one key come one after the other
    tx.execute(sa.select(models.Key.id).where(models.Key.id == key_id).with_for_update())
    row = models.Template
    tx.execute(sa.delete(row).where(row.key_id == key_id, row.name == name))
    n_templates = tx.scalar(
        sa.select(sa.func.count()).select_from(row).where(row.key_id == key_id)
    )
    if (n_templates or 0) >= MOST:
        raise errors.QuotaExceeded(f"a key may have {MOST} templates: delete some")
    template = row(key_id=key_id, name=name, job=dict(job), created_at=columns.db_now())
    tx.add(template)
    tx.flush()
    tx.refresh(template)
    return rows.Template.of(template)


def every(tx: orm.Session, key_id: int) -> list[rows.Template]:
    """The templates of a key, by name."""
    row = models.Template
    templates = tx.scalars(sa.select(row).where(row.key_id == key_id).order_by(row.name))
    return [rows.Template.of(template) for template in templates]


def get(tx: orm.Session, key_id: int, name: str) -> rows.Template:
    """A template of a key.

    Raises:
        NotFound
    """
    row = models.Template
    template = tx.scalar(sa.select(row).where(row.key_id == key_id, row.name == name))
    if template is None:
        raise errors.NotFound(f"this key has no template {name!r}")
    return rows.Template.of(template)


def delete(tx: orm.Session, key_id: int, name: str) -> None:
    """Remove a template of a key.

    Raises:
        NotFound
    """
    template = get(tx, key_id, name)
    tx.execute(sa.delete(models.Template).where(models.Template.id == template.id))
