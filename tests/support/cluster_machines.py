"""Machines that are processes of this one; a Ray cluster of a head, workers and tuners."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

TOKEN = "0123456789abcdef0123456789abcdef"
#: Seconds that a process may take to be ready, or to end.
LIMIT_S = 240.0
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Starts and ends processes, whose output goes to files of `folder`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *command: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to a file of its own."""
        log = (self.folder / f"{len(self._processes)}.log").open("wb")
        process = subprocess.Popen(
            command,
            env=environment or self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=self.folder,
        )
        self._processes.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """What a process has written."""
        return (self.folder / f"{self._processes.index(process)}.log").read_text()

    def until(
        self,
        process: subprocess.Popen[bytes],
        said: Callable[[str], bool],
        seconds: float = LIMIT_S,
    ) -> str:
        """Wait for a process to say something, or for something else, while it runs."""
        until_s = time.monotonic() + seconds
        while not said(self.log(process)):
            assert process.poll() is None, self.log(process)
            assert time.monotonic() < until_s, self.log(process)
            time.sleep(0.2)
        return self.log(process)

    def close(self) -> None:
        """End all, and what they have started."""
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)  # Ray itself takes half a minute
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class Machines(Processes):
    """Processes that are machines of a cluster, whose head has an address of `host`."""

    def __init__(self, folder: pathlib.Path, host: str = "127.0.0.1") -> None:
        super().__init__(folder)
        #: Ray makes sockets in it, whose paths are limited to 107 bytes
        self.short_folder = tempfile.mkdtemp(prefix="felix-ray-", dir="/tmp")
        self.address = f"{host}:{free_port()}"
        self.environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }

    def head(self) -> None:
        """Start the head, which measures nothing."""
        host, port = self.address.split(":")
        self.start(
            *RAY,
            "start",
            "--head",
            "--block",
            f"--node-ip-address={host}",
            f"--port={port}",
            "--num-cpus=0",
            "--include-dashboard=false",
            "--disable-usage-stats",
            f"--temp-dir={self.short_folder}",
            "--object-store-memory=100000000",
        )

    def worker(self, *through: str) -> subprocess.Popen[bytes]:
        """Start a worker that builds and measures on this CPU, by a command that starts others."""
        return self.start(
            *through,
            sys.executable,
            "-m",
            "felix",
            "worker",
            f"--address={self.address}",
            "--devices=cpu",
            "--builders=1",
        )

    def tune(self, out: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a tuner."""
        return self.start(
            sys.executable,
            "-m",
            "felix",
            "tune",
            "gemm:64,64,64",
            f"--cluster={self.address}",
            f"--out={out}",
            "--trials=32",
            "--round=8",
            "--json",
            *options,
        )

    def close(self) -> None:
        """End all."""
        super().close()
        shutil.rmtree(self.short_folder, ignore_errors=True)
