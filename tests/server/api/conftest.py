"""The application in process, on SQLite and PostgreSQL, with keys of every scope."""

from __future__ import annotations

import dataclasses
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from felix import client as felix_client
from server import app
from server import settings as service_settings
from server.database import database
from server.parsing import parser as parsing
from server.store import blobs, keys
from tests.server.conftest import db, postgres, url  # noqa: F401  (fixtures)
from tests.support.live_service import Served, Shell

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient


@dataclasses.dataclass(frozen=True)
class Service:
    """An application that runs, and what is behind it."""

    client: testclient.TestClient
    db: database.Database
    blobs: blobs.BlobStore
    settings: service_settings.Settings
    #: by scope: read, submit, admin
    keys: dict[str, keys.Made]

    def auth(self, scope: str) -> dict[str, str]:
        """The header of a key with that scope."""
        return {"Authorization": f"Bearer {self.keys[scope].text}"}

    def files(self) -> list[pathlib.Path]:
        """The files of the blob store."""
        folder = self.settings.data_dir / "blobs"
        return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def settings(url: str, tmp_path: pathlib.Path) -> service_settings.Settings:  # noqa: F811
    return service_settings.Settings(
        data_dir=tmp_path,
        database_url=url,
        max_upload_bytes=4 << 20,
        parse_s=30.0,
        cache_ttl_s=1e-9,  # tests write past the application and want to see it
    )


class RememberingParser(parsing.Parser):
    """Runs a child once for each request: the tests on the other database ask the same."""

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
    db: database.Database,  # noqa: F811
    settings: service_settings.Settings,
    parser: parsing.Parser,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Service]:
    """The client speaks with the key of the scope submit, which also reads."""
    monkeypatch.setattr(parsing.Parser, "warm", lambda _: None)
    monkeypatch.setattr(parsing, "Parser", lambda *_: parser)
    with db.write() as tx:
        made = {
            "read": keys.create(tx, keys.NewKey(name="reader")),
            "submit": keys.create(
                tx, keys.NewKey(name="submitter", can_submit=True, can_priority=True)
            ),
            "admin": keys.create(tx, keys.NewKey(name="admin", can_read=False, can_admin=True)),
        }
    made_app = app.create_app(settings)
    with testclient.TestClient(made_app, raise_server_exceptions=False) as client:
        store = blobs.open_store(settings.blobs)
        running_service = Service(client, db, store, settings, made)
        client.headers.update(running_service.auth("submit"))
        yield running_service


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    patch = pytest.MonkeyPatch()
    patch.setattr(parsing.Parser, "warm", lambda _: None)
    made = Served(tmp_path_factory.mktemp("served"))
    with made.running():
        yield made
    made.db.close()
    patch.undo()


@pytest.fixture
def felix(served: Served) -> Iterator[felix_client.Client]:
    with felix_client.Client(served.url, served.key.text) as made:
        yield made


@pytest.fixture
def shell(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Shell:
    return Shell(served, monkeypatch, capsys)
