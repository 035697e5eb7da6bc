"""A tracker and boards that are processes of this machine."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from felix import errors
from felix.measure.boards import pool, tracker
from tests.support import cluster_machines, waiting


class Boards(cluster_machines.Processes):
    """A tracker, and the processes of its boards by their keys."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.tracker = tracker.Tracker("127.0.0.1", cluster_machines.free_port())
        self.boards: dict[str, subprocess.Popen[bytes]] = {}
        ports = (f"--port={self.tracker.port}", f"--port-end={self.tracker.port + 1}")
        command = (sys.executable, "-m", "tvm.exec.rpc_tracker", "--host=127.0.0.1", *ports)
        self.start(*command)
        waiting.until(self._answers)

    def add(self, key: str) -> pool.Board:
        """Start a board as a user does, and wait until it is to be had."""
        options = (f"--tracker={self.tracker}", f"--key={key}", "--host=127.0.0.1")
        port = f"--port={cluster_machines.free_port()}"
        self.boards[key] = self.start(sys.executable, "-m", "felix", "worker", *options, port)
        waiting.until(lambda: key in self.tracker.keys())
        return pool.Board(tracker=self.tracker, key=key, lease_s=1.0)

    def kill(self, key: str) -> None:
        """End a board as a power cut does."""
        self.boards[key].kill()
        self.boards.pop(key).wait()

    def _answers(self) -> bool:
        try:
            self.tracker.keys()
        except errors.MeasureError:
            return False
        return True
