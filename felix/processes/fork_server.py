"""A fork server as seen by its parent: a process that forks workers, replaced if it dies.

`fork_loop` is what runs in it, and has the protocol. It is a fresh program with an environment of
its own (`environment`), so that its workers find no secret in their memory.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix import errors
from felix.processes import child

_PACKET_BYTES = 65536


class ForkServer:
    """The process that forks workers, started when first needed and again if it dies.

    Args:
        module: its program, which calls `fork_loop.serve`.
        start_timeout_s: how long it may take to be ready.
        arguments: of the program, behind its socket and its folder.
        variables: of its environment, beside those that every child gets.
        has_log: whether it has a log in its folder, or writes where this process does.
    """

    def __init__(
        self,
        module: str,
        start_timeout_s: float,
        *,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] = child.ONE_THREAD,
        has_log: bool = True,
    ) -> None:
        self.work_dir = pathlib.Path(tempfile.mkdtemp(prefix="felix-work-"))
        self._module, self._arguments = module, arguments
        self._variables, self._has_log = variables, has_log
        self._start_timeout_s = start_timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the running fork server."""
        return self._process.pid if self._process is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether the process has loaded what it forks workers with."""
        return self._ready

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        with self._lock:
            self._launch()

    def await_ready(self) -> None:
        """Wait until the process can fork; one that failed is replaced when it has to."""
        with self._lock:
            try:
                self._await_ready()
            except ConnectionError:
                self._drop()

    def fork(self, settings: dict[str, Any], *pipes: Connection | socket.socket) -> int:
        """Fork a worker that has these pipes; returns its pid, which is its group's, too.

        Raises:
            MeasureError: no fork server could be started.
        """
        with self._lock:
            for attempt in (1, 2):  # one killed since the last fork is replaced once
                try:
                    fds = [each.fileno() for each in pipes]
                    return int(self._request({"fork": settings}, fds)["pid"])
                except ConnectionError:
                    self._drop()
                    if attempt == 2:
                        said = tail(self.work_dir / "fork_server.log") or "no message"
                        raise errors.MeasureError(f"cannot start workers: {said}") from None
        raise AssertionError("unreachable")

    def wait(self, pid: int) -> int | None:
        """Reap a dead worker; its wait status, None if the fork server died with it."""
        with self._lock:
            if self._control is None:
                return None
            try:
                status: int | None = self._request({"wait": pid}, [])["status"]
                return status
            except ConnectionError:
                self._drop()
                return None

    def close(self) -> None:
        """End the process and, through it, every worker."""
        with self._lock:
            self._closed = True
            self._drop()
            child.remove_tree(self.work_dir)  # the process does that, unless it was killed

    def _launch(self) -> None:
        if self._closed:
            raise errors.MeasureError("the pool is closed")
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self.work_dir / "fork_server.log", "ab") as log:
            fd = theirs.fileno()
            self._process = child.start(
                self._module,
                *(str(fd), str(self.work_dir), *self._arguments),
                environment=child.for_child(os.environ, self._variables),
                pass_fds=[fd],
                log=log if self._has_log else None,
            )
        self._control = ours
        self._ready = False

    def _request(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One request in lock-step; ConnectionError when the process is gone."""
        self._await_ready()
        assert self._control is not None
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)
        return self._receive()

    def _await_ready(self) -> None:
        self._launch()
        assert self._control is not None
        if not self._ready:
            self._control.settimeout(self._start_timeout_s)
            self._receive()
            self._control.settimeout(None)
            self._ready = True

    def _receive(self) -> dict[str, Any]:
        assert self._control is not None
        try:
            packet = self._control.recv(_PACKET_BYTES)
        except TimeoutError:
            raise ConnectionError("the fork server did not start in time") from None
        if not packet:
            raise ConnectionError("the fork server is gone")
        reply: dict[str, Any] = json.loads(packet)
        return reply

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(timeout=5)  # it kills its workers and goes
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None


def tail(path: pathlib.Path) -> str:
    """The last 300 characters of a log file on one line; empty if there is none."""
    text = child.end_of(path, 1200) if path.exists() else ""
    return " ".join(text.strip()[-300:].split())
