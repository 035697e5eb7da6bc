"""Engines' processes as their tuner sees them, and the process that forks them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import select
import signal
import socket
import subprocess
import tempfile
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any

from felix.measure.pool import worker
from felix.processes import child
from server.tuner.process import messages, rights

#: How long a process may take to end, and what it has started, in seconds.
_END_S = 10.0


class EngineDied(Exception):
    """The engine's process ended by itself."""


class Child:
    """One engine's process; a thread of this process takes its messages in.

    Args:
        connection: to the process.
        folder: in which the process may write.
    """

    def __init__(self, connection: Connection, folder: pathlib.Path) -> None:
        self._connection = connection
        self.folder = folder
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
        """End it now; its measuring processes end with it, and at the next fork whatever else."""
        _shut_down(self._connection)  # whoever else holds the other end
        self._thread.join()
        self._connection.close()
        if self._pid_fd is not None:
            try:
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            ended = select.poll()
            ended.register(self._pid_fd, select.POLLIN)
            ended.poll(_END_S * 1000)
            os.close(self._pid_fd)
            self._pid_fd = None
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
            self._introduce(messages.receive(self._connection))
            while True:
                self._messages.put(messages.receive(self._connection))
        except (EOFError, OSError, ValueError, TypeError):
            self._messages.put(None)

    def _introduce(self, hello: messages.Message) -> None:
        """Note the process id, which comes before anything of a client's: never again."""
        if hello.verb != messages.Verb.HELLO:
            raise ValueError(f"the engine's first message is {hello.verb!r}")
        pid = int(hello.arguments[0])
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

    def fork(self, start: rights.Start, cluster: socket.socket | None = None) -> Child:
        """A new engine's process; it says when it is ready.

        Args:
            start: how it starts.
            cluster: its pipe to the link of a cluster, which is closed here.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._launch()
        assert self._control is not None
        ours, theirs = Pipe()
        folder = pathlib.Path(tempfile.mkdtemp(prefix="felix-engine-")).absolute()
        with theirs, cluster or contextlib.nullcontext():
            fds = [theirs.fileno()] + ([] if cluster is None else [cluster.fileno()])
            try:
                socket.send_fds(self._control, [rights.packed(folder, start)], fds)
            except OSError:
                pass  # it died just now: so does the pipe
        return Child(ours, folder)

    def close(self) -> None:
        """End the process and, through it, every engine."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)  # it ends all that its engine has started
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = child.start(
                "server.tuner.process.zygote_main",
                *(str(theirs.fileno()), *self._arguments),
                environment=child.for_child(os.environ, rights.variables()),
                pass_fds=[theirs.fileno()],
                log=None,
                leads_session=False,
            )
        self._control = ours


def _shut_down(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        with contextlib.suppress(OSError):  # it is already
            end.shutdown(socket.SHUT_RDWR)
