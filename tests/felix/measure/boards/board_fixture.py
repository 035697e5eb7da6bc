"""A tracker and boards that are processes of this machine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from felix import errors
from felix.measure.boards import board_runs, tracker


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something."""
    end_s = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end_s
        time.sleep(0.05)


class Boards:
    """Starts and ends processes; their output goes to files of `folder`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        port = free_port()
        self.tracker = tracker.Tracker("127.0.0.1", port)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start(
            "tracker",
            "tvm.exec.rpc_tracker",
            "--host=127.0.0.1",
            f"--port={port}",
            f"--port-end={port + 1}",
        )
        until(self._answers)

    def add(self, key: str) -> board_runs.Board:
        """Start a board as a user does, and wait until it is to be had."""
        self._start(
            key,
            "felix",
            "worker",
            f"--tracker={self.tracker}",
            f"--key={key}",
            "--host=127.0.0.1",
            f"--port={free_port()}",
        )
        until(lambda: key in self.tracker.keys())
        return board_runs.Board(tracker=self.tracker, key=key, lease_s=1.0)

    def kill(self, name: str) -> None:
        """End a process as a power cut does."""
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        """End all."""
        try:
            for process in self.processes.values():
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        finally:
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # TVM's tracker leaves a process

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                cwd=self.folder,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        try:
            self.tracker.keys()
        except errors.MeasureError:
            return False
        return True
