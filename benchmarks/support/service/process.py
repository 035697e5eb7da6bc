"""A store, a key and an API server in a process of its own, for the benchmarks of the service."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil

from felix.workloads import catalogue
from server.database import database, schema
from server.store import blobs, keys

#: How long the first point of a curve may take.
FIRST_POINT_S = 120.0
POLL_S = 0.02


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


def first_point(service: Service, chosen: argparse.Namespace) -> dict[str, Any]:
    """How soon the first submit after a start has a point of its curve.

    The API and one tuner start, and a job is submitted as soon as the API answers.
    """
    name, params = catalogue.parse_params(chosen.workload)
    body = {
        "workload": {"kind": "operator", "name": name, "params": params},
        "trials": chosen.trials,
    }
    began_s = time.monotonic()
    client = httpx.Client(base_url=f"{service.url}/v1", headers=service.headers, timeout=60)
    with service.serving(with_tuner=True), client:
        ready_s = time.monotonic() - began_s
        response = client.post("/jobs", json=body)
        response.raise_for_status()
        submitted_s = time.monotonic()
        path = f"/jobs/{response.json()['id']}/curve"
        while not client.get(path).json()["points"]:
            if time.monotonic() - submitted_s > FIRST_POINT_S:
                raise SystemExit(f"no point in {FIRST_POINT_S:g} s")
            time.sleep(POLL_S)
        point_s = time.monotonic() - submitted_s
    print(f"ready after {ready_s:.1f} s, first point {point_s:.1f} s after the submit")
    return {"workload": chosen.workload, "ready_s": ready_s, "first_point_s": point_s}


def cpu_s(process: psutil.Process) -> float:
    """Seconds of CPU of one process, all its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)
