"""Column types and the database's clock, the same on SQLite and PostgreSQL.

Every time in the store is the database's, aware and in UTC; clocks of machines only give
durations.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.ext import compiler
from sqlalchemy.sql import functions


class UtcDateTime(sa.types.TypeDecorator[datetime.datetime]):
    """An aware time in UTC; SQLite keeps it as text that sorts by time."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(
        self, value: datetime.datetime | None, dialect: Dialect
    ) -> datetime.datetime | None:
        """To the database; a naive time is a mistake of ours."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("times must be aware")
        utc = value.astimezone(datetime.UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(
        self, value: datetime.datetime | None, dialect: Dialect
    ) -> datetime.datetime | None:
        """From the database."""
        if value is None:
            return None
        if value.tzinfo is None:
            return value.replace(tzinfo=datetime.UTC)
        return value.astimezone(datetime.UTC)


class CleanText(sa.types.TypeDecorator[str]):
    """Text of any origin: what PostgreSQL refuses (NUL, lone surrogates) becomes U+FFFD."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database."""
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class db_now(functions.FunctionElement[datetime.datetime]):
    """The database's time when the statement runs, plus `offset_s` seconds."""

    type = UtcDateTime()
    inherit_cache = True
    name = "db_now"

    def __init__(self, offset_s: float = 0.0) -> None:
        super().__init__(sa.literal(float(offset_s), sa.Float()))


@compiler.compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiled: Any, **kw: Any) -> str:
    offset = compiled.process(element.clauses, **kw)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', ({offset}) || ' seconds') || '000')"


@compiler.compiles(db_now, "postgresql")
def _postgresql_now(element: db_now, compiled: Any, **kw: Any) -> str:
    offset = compiled.process(element.clauses, **kw)
    return f"(clock_timestamp() + make_interval(secs => {offset}))"
