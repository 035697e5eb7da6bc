"""A worker process as seen by the parent: start, call with a deadline, pause, replace."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from felix import errors
from felix.measure.pool import fork_server

#: Longest single wait on a pipe, so that time spent paused is noticed.
_POLL_S = 0.25
#: A busy worker may wait for a core this many times as long as it may compute.
_STARVED = 10.0


class WorkerLost(Exception):
    """A request cost the worker its life.

    `cpu_s` are the CPU seconds that the request took until then, 0 where nobody can tell.
    """

    def __init__(self, message: str, cpu_s: float) -> None:
        super().__init__(message)
        self.cpu_s = cpu_s


class WorkerDied(WorkerLost):
    """The worker ended while it had a request; `signal_number` is None if it exited."""

    def __init__(self, signal_number: int | None, log: str, cpu_s: float) -> None:
        name = "exited" if signal_number is None else signal.Signals(signal_number).name
        super().__init__(f"the worker died ({name}){': ' if log else ''}{log}", cpu_s)
        self.signal_number = signal_number


class WorkerTimeout(WorkerLost):
    """The worker did not answer in time and was killed."""


class Worker:
    """One worker; a fresh fork takes its place after a death, at the next call."""

    def __init__(
        self, server: fork_server.ForkServer, name: str, settings: dict[str, Any]
    ) -> None:
        self.name = name
        self._server = server
        self._log = server.work_dir / f"{name}.log"
        self._settings = settings | {"log": str(self._log)}
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._pid: int | None = None
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._cpu_before_s = 0.0

    @property
    def pid(self) -> int | None:
        """Process id while alive."""
        return self._pid

    def call(
        self,
        request: dict[str, Any],
        timeout_s: float,
        quiet: Callable[[], None] | None = None,
        busy: bool = False,
    ) -> dict[str, Any]:
        """Send a request and wait; time spent paused or waiting for quiet does not count.

        A `busy` request computes all the time: its limit is on CPU seconds, so that a loaded
        machine does not fail what an idle one builds, and on `_STARVED` times as long a wait.

        Raises:
            WorkerDied, WorkerTimeout: the request cost the worker its life.
            MeasureError: no worker could be started, or `quiet` raised it.
        """
        self._deliver(request)
        start, self._paused_s = time.monotonic(), 0.0
        self._cpu_before_s = cpu_seconds(self._pid)
        while True:
            left_s = timeout_s + self._paused_s - (time.monotonic() - start)
            if left_s <= 0 and busy and left_s > -(_STARVED - 1) * timeout_s:
                left_s = timeout_s - self._cpu_s()
            if self._paused_at is not None:
                left_s = _POLL_S
            if left_s <= 0:
                used_s = self._cpu_s()
                self.kill()
                unit = "CPU seconds" if busy and used_s >= timeout_s else "s"
                raise WorkerTimeout(f"no answer within {timeout_s:g} {unit}", used_s)
            message = self._message(min(left_s, _POLL_S))
            if message is None:
                continue
            kind, content = message
            if kind == "done":
                reply: dict[str, Any] = content
                return reply
            if kind == "resting":
                self._paused_s += content
            if kind == "quiet" and quiet is not None:
                self._let_go(quiet)

    def pause(self) -> None:
        """Stop the process where it is (SIGSTOP)."""
        with self._lock:
            if self._pid is not None and self._paused_at is None:
                _signal(self._pid, signal.SIGSTOP)
                self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Let a paused process go on."""
        with self._lock:
            if self._paused_at is not None:
                self._paused_s += time.monotonic() - self._paused_at
                self._paused_at = None
                if self._pid is not None:
                    _signal(self._pid, signal.SIGCONT)

    def kill(self) -> int | None:
        """End the process now; its wait status if it can be known."""
        with self._lock:
            pid, self._pid = self._pid, None
            if pid is not None:
                _signal(pid, signal.SIGKILL)
        if self._conn is not None:
            self._conn.close()
            self._conn = None
        return self._server.wait(pid) if pid is not None else None

    def _message(self, wait_s: float) -> tuple[str, Any] | None:
        """What the worker says next; None if it says nothing for that long."""
        assert self._conn is not None
        try:
            if not self._conn.poll(wait_s):
                return None
            message: tuple[str, Any] = self._conn.recv()
            return message
        except (EOFError, OSError):
            raise self._died() from None

    def _let_go(self, quiet: Callable[[], None]) -> None:
        """Call `quiet`, then let the worker go on; the time that takes does not count."""
        waiting = time.monotonic()
        try:
            quiet()
        except errors.MeasureError:
            self.kill()  # it waits for an answer
            raise
        self._paused_s += time.monotonic() - waiting
        assert self._conn is not None
        try:
            self._conn.send("go")
        except OSError:
            raise self._died() from None

    def _deliver(self, request: dict[str, Any]) -> None:
        """Send the request and see it started; a worker that died while idle is replaced."""
        for attempt in (1, 2):
            try:
                if self._conn is None:
                    self._start()
                assert self._conn is not None
                self._conn.send(request)
                self._conn.recv()  # "started"
                return
            except (EOFError, OSError):
                died = self._died()
                if attempt == 2:
                    raise died from None

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            pid = self._server.fork(self._settings, theirs)
        with self._lock:
            self._conn, self._pid = ours, pid
            self._cpu_before_s = 0.0
            if self._paused_at is not None:
                _signal(pid, signal.SIGSTOP)

    def _cpu_s(self) -> float:
        """CPU seconds of the request so far; a dead process tells until it is reaped."""
        return max(0.0, cpu_seconds(self._pid) - self._cpu_before_s)

    def _died(self) -> WorkerDied:
        used_s = self._cpu_s()
        status = self.kill()
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        if status is None:
            number = int(signal.SIGKILL)  # the fork server died, and the kernel killed its workers
        return WorkerDied(number, fork_server.tail(self._log), used_s)


def cpu_seconds(pid: int | None) -> float:
    """CPU time that a process has used; 0 if it is gone or this system does not say."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it died by itself; the caller learns that from the pipe
