"""A Ray cluster on this machine: a head, workers and tuners, each a process."""

from __future__ import annotations

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
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Machines:
    """Processes that are machines of a cluster.

    Args:
        folder: for what they write.
        host: address of the head.
    """

    def __init__(self, folder: pathlib.Path, host: str = "127.0.0.1") -> None:
        self.folder = folder
        #: Ray makes sockets in it, whose paths are limited to 107 bytes
        self.short_folder = tempfile.mkdtemp(prefix="felix-ray-", dir="/tmp")
        self.address = f"{host}:{free_port()}"
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to a file of its own."""
        log = (self.folder / f"{len(self._processes)}.log").open("wb")
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=self.folder,
        )
        self._processes.append(process)
        return process

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
                process.wait(5)  # Ray itself takes half a minute
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self.short_folder, ignore_errors=True)
