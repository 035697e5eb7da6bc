"""Engines' processes as their tuner sees them, and the process that forks them."""

from __future__ import annotations

import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from felix.measure.pool import worker
from server.tuner.process import messages

#: Variables with these prefixes are not passed on: they may hold secrets.
PRIVATE = ("FELIX_", "AWS_", "PG")
#: Those that an engine reads.
PUBLIC = frozenset({"FELIX_CACHE_DIR"})


class EngineDied(Exception):
    """The engine's process ended by itself."""


class Child:
    """One engine's process; a thread of this process takes its messages in."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[messages.Message | None] = queue.SimpleQueue()
        self._pid_fd: int | None = None
        #: process id, once it said so
        self.pid: int | None = None
        self._thread = threading.Thread(target=self._receive, name="engine", daemon=True)
        self._thread.start()

    def send(self, *content: Any) -> None:
        """Send a request or a reply; to one that died it is lost."""
        try:
            self._connection.send(content)
        except OSError:
            pass  # `take` says that it died

    def take(self, timeout_s: float) -> messages.Message | None:
        """Its next message; None if there is none for so long.

        Raises:
            EngineDied
        """
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if message is None:
            self._messages.put(None)
            raise EngineDied("the engine's process ended")
        return message

    def kill(self) -> None:
        """End it now, and with it its measuring processes."""
        if self._pid_fd is not None:
            try:
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            os.close(self._pid_fd)
            self._pid_fd = None
        self._thread.join()
        self._connection.close()

    def rss_bytes(self) -> int:
        """Memory that it has in use; 0 once it is gone."""
        try:
            pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except OSError:
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """CPU seconds that it has used; 0 once it is gone."""
        return worker.cpu_seconds(self.pid)

    def _receive(self) -> None:
        try:
            while True:
                message = messages.receive(self._connection)
                if message.verb == messages.Verb.HELLO:
                    self._introduce(int(message.arguments[0]))
                else:
                    self._messages.put(message)
        except (EOFError, OSError, ValueError, TypeError):
            self._messages.put(None)

    def _introduce(self, pid: int) -> None:
        self._pid_fd, self.pid = os.pidfd_open(pid), pid


class Zygote:
    """The process that forks engines, started again if it died.

    Args:
        factory: `module:name` of what makes an engine.
        log_json: log lines as JSON.
    """

    def __init__(self, factory: str, log_json: bool) -> None:
        self._arguments = [factory, "1" if log_json else "0"]
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> Child:
        """A new engine's process; it says when it is ready."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._launch()
        assert self._control is not None
        ours, theirs = Pipe()
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:
                pass  # it died just now: so does the pipe
        return Child(ours)

    def close(self) -> None:
        """End the process and, through it, every engine."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(pathlib.Path(__file__).resolve().parents[3])
        command = [sys.executable, "-m", "server.tuner.process.zygote_main", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *self._arguments],
                env=_environment(os.environ, package),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._control = ours


def _environment(ours: Mapping[str, str], package: str) -> dict[str, str]:
    """What an engine may know of this process's environment."""
    passed = {
        name: value
        for name, value in ours.items()
        if name in PUBLIC or not name.startswith(PRIVATE)
    }
    path = os.pathsep.join([package, *filter(None, [ours.get("PYTHONPATH")])])
    return passed | {"PYTHONPATH": path}
