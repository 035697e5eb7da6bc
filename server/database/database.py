"""A database and its transactions.

    with database.write() as tx: ...     commits at the end, rolls back on an error
    with database.read() as tx: ...
    with database.read(visibility.Visibility("vision")) as tx: ...     sees a project's rows only

A write transaction of SQLite begins with BEGIN IMMEDIATE: it holds the write lock from its first
statement, so what it reads does not change under it. On PostgreSQL the store's verbs lock the
rows they decide on (`FOR UPDATE`, which SQLite ignores). Verbs of `server.store` take the
transaction, so several of them can be one.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import folders
from server.database import visibility

#: How long a statement waits for SQLite's write lock, in milliseconds.
BUSY_MS = 30_000


class Database:
    """An engine and its two kinds of transactions; safe to share between threads."""

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        #: of an SQLite database
        self.path = pathlib.Path(parsed.database or "") if self.is_sqlite else None
        if self.path is not None:
            _make_private(self.path)
        options: dict[str, Any] = {} if self.is_sqlite else {"pool_pre_ping": True}
        self.engine = sa.create_engine(
            parsed, pool_size=10, max_overflow=20, hide_parameters=True, **options
        )
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _configure_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        self._turn = threading.Lock()
        self._writer = self.engine.execution_options(felix_write=True)

    @contextlib.contextmanager
    def write(self, sees: visibility.Visibility = visibility.EVERYTHING) -> Iterator[orm.Session]:
        """A transaction that may write, of what is visible."""
        session = visibility.session(self._writer, sees)
        with self._taken_turn(), session as tx, tx.begin():
            yield tx

    @contextlib.contextmanager
    def read(self, sees: visibility.Visibility = visibility.EVERYTHING) -> Iterator[orm.Session]:
        """A transaction that only reads, of what is visible."""
        with visibility.session(self.engine, sees) as tx, tx.begin():
            yield tx

    @contextlib.contextmanager
    def _taken_turn(self) -> Iterator[None]:
        """Threads take turns on SQLite, whose own waiting is not fair."""
        if not self.is_sqlite:
            yield
            return
        if not self._turn.acquire(timeout=BUSY_MS / 1000):
            waited = TimeoutError("another thread of this process is still writing")
            raise sa.exc.OperationalError("BEGIN IMMEDIATE", None, waited)
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _make_private(path: pathlib.Path) -> None:
    """SQLite gives the files beside the database the database's mode."""
    folders.make_folder(path.parent)
    folders.make_file(path)
    for suffix in ("-wal", "-shm", "-journal"):
        folders.tighten(path.with_name(path.name + suffix))


def _configure_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    for pragma in (
        f"busy_timeout={BUSY_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    is_write = connection.get_execution_options().get("felix_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
