"""What tests of the service share: databases, the application in process, and served.

A test has an empty SQLite database. Tests of the store, and those that are `on_both_databases`,
run on PostgreSQL, too. `FELIX_TEST_POSTGRES_URL` names a server where databases may be made;
without it 127.0.0.1:5432 is tried with the user postgres. Where there is none, these tests are
skipped, saying why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from felix import client as felix_client
from server import app
from server import settings as service_settings
from server.database import columns, database, models, schema
from server.parsing import parser as parsing
from server.store import blobs, keys, projects
from tests.support import live_service, service_fakes
from tests.support.live_service import Served, Shell

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient

#: For tests of what differs between databases: locks, types, statements.
on_both_databases = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of the store are on both databases."""
    if "url" in metafunc.fixturenames and "store" in metafunc.definition.path.parts:
        metafunc.parametrize("url", ["sqlite", "postgresql"], indirect=True)


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


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """URL of a database without rows: SQLite's, unless the test is one `on_both_databases`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'felix.db'}"
    postgres_url: str = request.getfixturevalue("postgres")
    return postgres_url


@pytest.fixture
def db(url: str) -> Iterator[database.Database]:
    """A database of today's schema without rows."""
    if url.startswith("sqlite"):
        opened = live_service.empty_database(url)
    else:
        opened = database.Database(url)
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


#: A job as a request has it.
GEMM: dict[str, Any] = {
    "workload": {"kind": "operator", "name": "gemm", "params": {"m": 8, "n": 8, "k": 8}}
}


def bearer(text: str) -> dict[str, str]:
    """The header of a key."""
    return {"Authorization": f"Bearer {text}"}


@dataclasses.dataclass(frozen=True)
class Service:
    """An application that runs, and what is behind it."""

    client: testclient.TestClient
    db: database.Database
    blobs: blobs.BlobStore
    settings: service_settings.Settings
    #: by scope: read, submit, admin
    keys: dict[str, keys.CreatedKey]

    def auth(self, scope: str) -> dict[str, str]:
        """The header of a key with that scope."""
        return bearer(self.keys[scope].text)

    def get(self, path: str) -> Any:
        """What the API says at an address."""
        response = self.client.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def submit(self, job: dict[str, Any], **changes: Any) -> Any:
        """The new job of a request."""
        response = self.client.post("/v1/jobs", json=job | changes)
        assert response.status_code == 201, response.text
        return response.json()

    def upload(self, name: str, content: bytes, job: str = "{}") -> Any:
        """The response to a file."""
        files = {"file": (name, content)}
        return self.client.post("/v1/jobs/upload", files=files, data={"job": job})

    def files(self) -> list[pathlib.Path]:
        """The files of the blob store."""
        folder = self.settings.data_dir / "blobs"
        return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def settings(url: str, tmp_path: pathlib.Path) -> service_settings.Settings:
    return service_settings.Settings(
        data_dir=tmp_path,
        database_url=url,
        max_upload_bytes=4 << 20,
        parse_s=30.0,
        cache_ttl_s=1e-9,  # tests write past the application and want to see it
    )


class RememberingParser(parsing.Parser):
    """Runs a child once for each request: many tests submit the same."""

    def __init__(self) -> None:
        super().__init__(seconds=30.0)
        self._replies: dict[tuple[bytes, bytes], bytes | None] = {}

    def _run_child(self, header: bytes, content: bytes) -> bytes | None:
        key = (header, content)
        if key not in self._replies:
            self._replies[key] = super()._run_child(header, content)
        return self._replies[key]


@pytest.fixture(scope="session")
def parser() -> parsing.Parser:
    """One for all applications."""
    parsing.shared_fork_server()  # gets its folder before a test moves the scratch folder
    return RememberingParser()


@pytest.fixture
def service(
    db: database.Database,
    settings: service_settings.Settings,
    parser: parsing.Parser,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Service]:
    """The client speaks with the key of the scope submit, which also reads."""
    monkeypatch.setattr(parsing.Parser, "warm", lambda _: None)
    monkeypatch.setattr(parsing, "Parser", lambda *_: parser)
    made = {
        "read": service_fakes.key(db, "reader"),
        "submit": service_fakes.key(db, "submitter", can_submit=True, can_priority=True),
        "admin": service_fakes.key(db, "admin", can_read=False, can_admin=True),
    }
    made_app = app.create_app(settings)
    with testclient.TestClient(made_app, raise_server_exceptions=False) as client:
        store = blobs.open_store(settings.blobs)
        running_service = Service(client, db, store, settings, made)
        client.headers.update(running_service.auth("submit"))
        yield running_service


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with live_service.serving(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture
def felix(served: Served) -> Iterator[felix_client.Client]:
    with felix_client.Client(served.url, served.key.text) as made:
        yield made


@pytest.fixture
def shell(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Shell:
    return Shell(served, monkeypatch, capsys)
