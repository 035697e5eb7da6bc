"""Statements that the verbs share: one row by its key, a new row, changed rows, a count."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import models

M = TypeVar("M", bound=models.Base)
V = TypeVar("V")


def get(tx: orm.Session, kind: type[M], key: Any, missing: str) -> M:
    """The row of this primary key, read anew.

    Raises:
        NotFound: there is none; `missing` is the message.
    """
    row = tx.get(kind, key, populate_existing=True)
    if row is None:
        raise errors.NotFound(missing)
    return row


def add(tx: orm.Session, row: M) -> M:
    """Write a new row; it then has what the database gave it."""
    tx.add(row)
    tx.flush()
    tx.refresh(row)
    return row


def update(
    tx: orm.Session, kind: type[models.Base], /, *where: sa.ColumnElement[bool], **values: Any
) -> None:
    """Change rows; what the transaction has loaded of them stays as it was."""
    statement = sa.update(kind).where(*where).values(**values)
    tx.execute(statement.execution_options(synchronize_session=False))


def delete(tx: orm.Session, kind: type[models.Base], *where: sa.ColumnElement[bool]) -> None:
    """Remove rows; what the transaction has loaded of them stays as it was."""
    statement = sa.delete(kind).where(*where)
    tx.execute(statement.execution_options(synchronize_session=False))


def by_number(
    tx: orm.Session,
    number: orm.InstrumentedAttribute[int],
    value: orm.InstrumentedAttribute[V],
    numbers: Collection[int],
) -> dict[int, V]:
    """A column of the rows of these numbers that there are, by number."""
    query = sa.select(number, value).where(number.in_(numbers))
    return {key: each for key, each in tx.execute(query)}


def count(tx: orm.Session, kind: type[models.Base], *where: sa.ColumnElement[bool]) -> int:
    """How many rows there are."""
    return tx.scalar(sa.select(sa.func.count()).select_from(kind).where(*where)) or 0
