"""Databases for the tests of the service: SQLite always, PostgreSQL wherever one is reachable.

`FELIX_TEST_POSTGRES_URL` names a server where databases may be made; without it 127.0.0.1:5432 is
tried with the user postgres. Tests on PostgreSQL are skipped, saying why, where there is none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from server.database import columns, database, models, schema
from server.store.projects import projects

DEFAULT_URL = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"


@functools.cache
def postgres_problem() -> str | None:
    """Why there is no PostgreSQL; None if there is."""
    engine = sa.create_engine(server_url(), connect_args={"connect_timeout": 3})
    try:
        with engine.connect():
            return None
    except sa.exc.OperationalError as error:
        return str(error.orig).strip().splitlines()[0]
    finally:
        engine.dispose()


def server_url() -> sa.URL:
    """The server where databases may be made."""
    text = os.environ.get("FELIX_TEST_POSTGRES_URL") or DEFAULT_URL
    return sa.make_url(text).set(drivername="postgresql+psycopg")


@contextlib.contextmanager
def own_database() -> Iterator[str]:
    """URL of an empty PostgreSQL database, dropped at the end."""
    problem = postgres_problem()
    if problem is not None:
        pytest.skip(f"no PostgreSQL here, set FELIX_TEST_POSTGRES_URL to test with one: {problem}")
    name = f"felix_test_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(server_url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
        # Nothing here ends PostgreSQL, so no commit need wait for the disk.
        connection.execute(sa.text(f"ALTER DATABASE {name} SET synchronous_commit TO off"))
    try:
        yield server_url().set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of an empty PostgreSQL database, dropped at the end."""
    with own_database() as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once() -> Iterator[None]:
    """All engines of a backend share a dialect, hence the statements that SQLAlchemy compiled.

    A test has a database of its own, and would compile the statements of the service anew.
    """
    first: dict[str, sa.Engine] = {}

    def create_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
        engine = sa_create_engine(url, **options)
        if engine.dialect.name in first:
            shared = first[engine.dialect.name]
            engine.dialect, engine._compiled_cache = shared.dialect, shared._compiled_cache
        else:
            with contextlib.suppress(sa.exc.OperationalError), engine.connect():
                first[engine.dialect.name] = engine  # its dialect knows the server's version
        return engine

    sa_create_engine = sa.create_engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa, "create_engine", create_engine)
        yield


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """URL of a database without rows; both kinds in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'felix.db'}"
    postgres_url: str = request.getfixturevalue("postgres")
    return postgres_url


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An SQLite file of today's schema without rows, to be copied: revisions take their time."""
    path = tmp_path_factory.mktemp("schema") / "felix.db"
    made = database.Database(f"sqlite:///{path}")
    schema.upgrade(made)
    made.close()
    return path


@pytest.fixture
def db(url: str, empty_file: pathlib.Path) -> Iterator[database.Database]:
    """A database of today's schema without rows."""
    is_sqlite = url.startswith("sqlite")
    if is_sqlite:
        shutil.copyfile(empty_file, url.removeprefix("sqlite:///"))
    opened = database.Database(url)
    if not is_sqlite:
        empty(opened)
    yield opened
    opened.close()


def empty(db: database.Database) -> None:
    """Remove the rows of all tables, or make the tables; the default project stays."""
    if schema.current(db) != schema.head():
        drop_all(db)
        schema.upgrade(db)
        return
    sequences = "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"
    with db.engine.begin() as connection:  # TRUNCATE makes new files: 25 times as long
        for table in reversed(models.Base.metadata.sorted_tables):
            connection.execute(sa.delete(table))
        connection.execute(sa.text(sequences))
        first = {"name": projects.DEFAULT, "created_at": columns.db_now()}
        connection.execute(sa.insert(models.Project).values(**first))


def drop_all(db: database.Database) -> None:
    """Remove all tables of a PostgreSQL database."""
    with db.engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
