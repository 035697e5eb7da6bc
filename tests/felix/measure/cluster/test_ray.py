"""A real Ray cluster on this machine: a head, workers, a tuner; a token or nothing."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("ray", reason="needs the extra [cluster]")

TOKEN = "0123456789abcdef0123456789abcdef"
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
pytestmark = pytest.mark.slow


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Machines:
    """Processes that are machines of a cluster."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        #: Ray makes sockets in it, whose paths are limited to 107 bytes
        self.short_folder = tempfile.mkdtemp(prefix="felix-ray-", dir="/tmp")
        self.address = f"127.0.0.1:{_free_port()}"
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }  # fmt: skip
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to a file of its own."""
        log = (self.folder / f"{len(self._processes)}.log").open("wb")
        process = subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=log, start_new_session=True,
            cwd=self.folder,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def head(self) -> None:
        """Start the head, which measures nothing."""
        host, port = self.address.split(":")
        self.start(
            *RAY, "start", "--head", "--block", f"--node-ip-address={host}", f"--port={port}",
            "--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats",
            f"--temp-dir={self.short_folder}", "--object-store-memory=100000000",
        )  # fmt: skip

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker that builds and measures on this CPU."""
        return self.start(
            sys.executable, "-m", "felix", "worker", f"--address={self.address}",
            "--devices=cpu", "--builders=1",
        )  # fmt: skip

    def tune(self, out: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a tuner."""
        return self.start(
            sys.executable, "-m", "felix", "tune", "gemm:64,64,64", f"--cluster={self.address}",
            f"--out={out}", "--trials=32", "--round=8", "--json", *options,
        )  # fmt: skip

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """What a process has written."""
        return (self.folder / f"{self._processes.index(process)}.log").read_text()

    def until(
        self, process: subprocess.Popen[bytes], said: Callable[[str], bool], seconds: float
    ) -> str:
        """Wait for a process to say something."""
        until_s = time.monotonic() + seconds
        while not said(self.log(process)):
            assert process.poll() is None, self.log(process)
            assert time.monotonic() < until_s, self.log(process)
            time.sleep(0.2)
        return self.log(process)

    def close(self) -> None:
        """End all."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self.short_folder, ignore_errors=True)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("cluster"))
    made.head()
    yield made
    made.close()


def _measures(text: str) -> bool:
    return "felix worker: measures on" in text


def _trials(folder: pathlib.Path) -> list[str]:
    path = folder / "records.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_a_tuner_measures_on_workers_one_of_which_is_killed(machines: Machines) -> None:
    workers = []
    for _ in range(2):  # one after the other: each is some ten processes
        workers.append(machines.worker())
        machines.until(workers[-1], _measures, 240)
    tuner = machines.tune("out", "--trials=96")
    records = machines.folder / "out"
    until_s = time.monotonic() + 240
    while len(_trials(records)) < 8:
        assert tuner.poll() is None and time.monotonic() < until_s, machines.log(tuner)
        time.sleep(0.05)
    os.killpg(workers[0].pid, signal.SIGKILL)
    assert tuner.poll() is None, "it was too quick"
    assert tuner.wait(300) == 0, machines.log(tuner)
    trials = [json.loads(line) for line in _trials(records)]
    first = {(each["sketch_key"], *each["decisions"]) for each in trials}
    assert len(first) == 96  # all were measured; finals have records of their own
    assert all(each["measurement"]["error"] != "infrastructure" for each in trials)


def test_without_a_token_nothing_starts(machines: Machines) -> None:
    machines.environment = {
        name: value for name, value in machines.environment.items() if "RAY_AUTH" not in name
    } | {"HOME": str(machines.folder)}
    for process in (machines.worker(), machines.tune("none")):
        assert process.wait(120) == 1
        assert "with a token only" in machines.log(process)


def test_a_wrong_token_reaches_nothing(machines: Machines) -> None:
    machines.environment = machines.environment | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 32,
    }  # fmt: skip
    tuner = machines.tune("wrong")
    assert tuner.wait(180) != 0
    assert _trials(machines.folder / "wrong") == []
