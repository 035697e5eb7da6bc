"""A store, a key and an API server in a process of its own, for the benchmarks of the service."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil

from server.database import database, schema
from server.store import blobs, keys


class Service:
    """A store, a key and, in a block, an API server in a process of its own."""

    def __init__(self, folder: pathlib.Path, url: str | None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        places = {"FELIX_DATA_DIR": str(folder), "FELIX_PORT": str(self.port)}
        self.environment = {**os.environ, **places} | ({"FELIX_DATABASE_URL": url} if url else {})
        self.db = database.Database(url or f"sqlite:///{folder / 'felix.db'}")
        self.blobs = blobs.open_store(str(folder / "blobs"))
        schema.upgrade(self.db)
        with self.db.write() as tx:
            key = keys.create(tx, keys.NewKey(name="benchmark", can_admin=True))
        self.headers = {"Authorization": f"Bearer {key.text}"}

    @contextlib.contextmanager
    def serving(self, with_tuner: bool = False) -> Iterator[psutil.Process]:
        """The API, alone or as it is with a tuner beside it."""
        with self.process("serve", *([] if with_tuner else ["--no-tuner"])) as process:
            until_s = time.monotonic() + 120
            while time.monotonic() < until_s:
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"{self.url}/healthz")
                    yield psutil.Process(process.pid)
                    return
                time.sleep(0.2)
            raise SystemExit("the API does not respond")

    @contextlib.contextmanager
    def process(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command of Felix beside us."""
        process = subprocess.Popen(
            [sys.executable, "-m", "felix", *command],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def cpu_s(process: psutil.Process) -> float:
    """Seconds of CPU of one process, all its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)
