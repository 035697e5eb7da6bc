"""Engines' processes as their tuner sees them, and the fork server that they come from."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import queue
import socket
import tempfile
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any

from felix import errors
from felix.measure import worker
from felix.processes import child, fork_server
from server.tuner.process import messages, rights

#: How long the first engine may take to become ready, in seconds.
START_S = 300.0


class EngineDied(Exception):
    """The engine's process ended by itself."""


class Child:
    """One engine's process; a thread of this process takes its messages in.

    Args:
        server: that forked it.
        pid: its number; None of one that could not be forked.
        connection: to the process.
        folder: in which the process may write.
    """

    def __init__(
        self,
        server: fork_server.ForkServer,
        pid: int | None,
        connection: Connection,
        folder: pathlib.Path,
    ) -> None:
        self._server, self.pid = server, pid
        self._connection = connection
        self.folder = folder
        self._messages: queue.SimpleQueue[messages.Message | None] = queue.SimpleQueue()
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
        """End it now, and whatever it has started."""
        _shut_down(self._connection)  # whoever else holds the other end
        self._thread.join()
        self._connection.close()
        pid, self.pid = self.pid, None
        if pid is not None:
            child.end_group(pid, self._server.wait)
        child.remove_tree(self.folder)

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
                self._messages.put(messages.receive(self._connection))
        except (EOFError, OSError, ValueError, TypeError):
            self._messages.put(None)


def fork_server_of(factory: str, log_json: bool) -> fork_server.ForkServer:
    """The process that forks engines, which writes where this one does.

    Args:
        factory: `module:name` of what makes an engine.
        log_json: log lines as JSON.
    """
    return fork_server.ForkServer(
        "server.tuner.process.fork_server_main",
        START_S,
        arguments=[factory, "1" if log_json else "0"],
        variables=rights.variables(),
        has_log=False,
    )


def fork(
    server: fork_server.ForkServer, start: rights.Start, cluster: socket.socket | None = None
) -> Child:
    """A new engine's process; it says when it is ready.

    Args:
        start: how it starts.
        cluster: its pipe to the link of a cluster, which is closed here.
    """
    ours, theirs = Pipe()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="felix-engine-")).absolute()
    pid = None
    with theirs, cluster or contextlib.nullcontext():
        pipes = [theirs] if cluster is None else [theirs, cluster]
        with contextlib.suppress(errors.MeasureError):  # the child is dead, which `take` says
            pid = server.fork({"folder": str(folder), **dataclasses.asdict(start)}, *pipes)
    return Child(server, pid, ours, folder)


def _shut_down(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        with contextlib.suppress(OSError):  # it is already
            end.shutdown(socket.SHUT_RDWR)
