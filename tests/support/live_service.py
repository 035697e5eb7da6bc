"""The service behind a real server on a port of this machine, for tests that need sockets."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from felix.cli import main
from server import app
from server import settings as service_settings
from server.database import database, schema
from server.parsing import parser
from server.store import blobs
from server.web import connections
from tests.support import service_fakes
from tests.support.cluster_machines import free_port


@functools.cache
def _empty_content() -> bytes:
    """An SQLite file of today's schema without rows: revisions take their time."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "felix.db")
        made = database.Database(f"sqlite:///{path}")
        schema.upgrade(made)
        made.close()
        return path.read_bytes()


def empty_database(url: str) -> database.Database:
    """A new SQLite database of today's schema."""
    path = pathlib.Path(url.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_bytes(_empty_content())
    return database.Database(url)


class Served:
    """A service on a port of this machine, that may be stopped and served again, and its store.

    `changes` are settings.
    """

    server: uvicorn.Server

    def __init__(
        self,
        folder: pathlib.Path,
        limits: connections.Limits | None = None,
        key_name: str = "k",
        **changes: Any,
    ) -> None:
        self.settings = service_settings.Settings(data_dir=folder, port=free_port(), **changes)
        self.port, self.url = self.settings.port, self.settings.address
        self.db = empty_database(self.settings.database)
        self.blobs = blobs.open_store(self.settings.blobs)
        self.key = service_fakes.key(self.db, key_name, can_submit=True, can_admin=True)
        self._limits = limits

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parser.Parser, "warm", lambda _: None)
            made = app.create_app(self.settings)
            with run(connections.config(made, self.settings, self._limits)) as self.server:
                yield

    @property
    def authorization(self) -> str:
        """The header line of a key that may all."""
        return f"Authorization: Bearer {self.key.text}\r\n"

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        """A new connection from an address, whose reads and writes give up after some seconds."""
        return socket.create_connection(("127.0.0.1", self.port), 120.0, (address, 0))

    def send(self, text: str) -> bytes:
        """All that comes back on a connection of its own until the service closes it."""
        with self.connect() as connection:
            connection.sendall(text.encode())
            return read_to_end(connection)


@contextlib.contextmanager
def serving(folder: pathlib.Path, *arguments: Any, **changes: Any) -> Iterator[Served]:
    """A service that is served while the block runs."""
    made = Served(folder, *arguments, **changes)
    with contextlib.closing(made.db), made.running():
        yield made


@contextlib.contextmanager
def run(config: uvicorn.Config) -> Iterator[uvicorn.Server]:
    """Serve in a thread while the block runs."""
    server = connections._Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(30)
        assert not thread.is_alive()


def read_to_end(connection: socket.socket) -> bytes:
    """What comes until the other side closes; a reset counts as closed."""
    received = b""
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            return received
        if not part:
            return received
        received += part


class Shell:
    """Runs commands as a person would, with the key in the environment."""

    def __init__(self, served: Served, patch: pytest.MonkeyPatch, capsys: Any) -> None:
        patch.setenv("FELIX_URL", served.url)
        patch.setenv("FELIX_API_KEY", served.key.text)
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main.main(arguments)
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err
