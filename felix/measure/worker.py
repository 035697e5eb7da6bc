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
from felix.measure import inbox, rights
from felix.processes import child, fork_server

#: Longest single wait on a pipe, so that time spent paused is noticed.
_POLL_S = 0.25
#: A busy worker may wait for a core this many times as long as it may compute.
_STARVED = 10.0
#: How long a worker may take to say that it has read a request, time paused left out.
_START_S = 60.0
#: How long a worker that closed its pipe may take to end, in seconds.
_END_S = 1.0
#: Sleep of a request that is not charged to it; a run that waits for full speed takes about 2 s.
_MAX_REST_S = 10.0


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


class WorkerMisbehaved(WorkerLost):
    """The worker used too much or sent what no worker sends, and was killed."""


class Worker:
    """One worker; a fresh fork takes its place after a death, at the next call."""

    def __init__(
        self,
        server: fork_server.ForkServer,
        name: str,
        settings: dict[str, Any],
        allowance: rights.Allowance,
    ) -> None:
        self.name = name
        self._allowance = allowance
        self._server = server
        self._log = pathlib.Path(settings["log"])
        self._settings = settings
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._inbox: inbox.Inbox | None = None
        self._pid: int | None = None
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._cpu_before_s = 0.0
        #: whether a thread waits for the reply to a request
        self.is_called = False
        self._is_interrupted = False
        #: whether processes that start from now on are confined, by the policy of `settings`
        self.is_confined = True

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
        """The reply to a request; time spent paused or waiting for quiet does not count.

        A `busy` request computes all the time: its limit is on CPU seconds, so that a loaded
        machine does not fail what an idle one builds, and on `_STARVED` times as long a wait.

        Raises:
            WorkerDied, WorkerTimeout, WorkerMisbehaved: the request cost the worker its life.
            MeasureError: no worker could be started, or `quiet` raised it.
        """
        self._is_interrupted = False
        self.is_called = True
        try:
            reply = self._call(request, timeout_s, quiet, busy)
        finally:
            self.is_called = False
        try:
            return inbox.checked(request, reply)
        except inbox.Nonsense as error:
            raise self.misbehaved(f"it replied with {error}") from None

    def _call(
        self,
        request: dict[str, Any],
        timeout_s: float,
        quiet: Callable[[], None] | None,
        busy: bool,
    ) -> dict[str, Any]:
        self._deliver(request)
        start, self._paused_s = time.monotonic(), 0.0
        self._cpu_before_s = cpu_seconds(self._pid)
        rested_s = 0.0
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
            asked_s = time.monotonic()
            message = self._message(min(left_s, _POLL_S))
            # this process was stopped meanwhile, or had no core
            self._paused_s += max(0.0, time.monotonic() - asked_s - 2 * _POLL_S)
            if message is None:
                continue
            kind, content = message
            if kind == "done":
                reply: dict[str, Any] = content
                return reply
            if kind == "resting":
                rest_s = min(content, _MAX_REST_S - rested_s)
                rested_s += rest_s
                self._paused_s += rest_s
            if kind == "quiet" and quiet is not None:
                self._let_go(quiet)

    def misbehaved(self, reason: str) -> WorkerMisbehaved:
        """Kill the worker for what it did, and remove what it has left; the error to raise."""
        used_s = self._cpu_s()
        self.kill()
        self.clear()
        return WorkerMisbehaved(f"the worker was ended: {reason}", used_s)

    def clear(self) -> None:
        """Remove the files of a worker that has ended."""
        self._allowance.clear()

    def pause(self) -> None:
        """Stop the process, and what it has started, where it is (SIGSTOP)."""
        with self._lock:
            if self._pid is not None and self._paused_at is None:
                child.signal_group(self._pid, signal.SIGSTOP)
                self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Let a paused process go on."""
        with self._lock:
            if self._paused_at is not None:
                self._paused_s += time.monotonic() - self._paused_at
                self._paused_at = None
                if self._pid is not None:
                    child.signal_group(self._pid, signal.SIGCONT)

    def interrupt(self) -> None:
        """End the process under a call of another thread, which raises `WorkerDied`."""
        with self._lock:
            self._is_interrupted = True
            if self._pid is not None:
                child.signal_group(self._pid, signal.SIGKILL)

    def kill(self) -> int | None:
        """End the process and what it has started; its wait status if it can be known."""
        with self._lock:
            pid, self._pid = self._pid, None
        status = child.end_group(pid, self._server.wait) if pid is not None else None
        if self._conn is not None:
            self._conn.close()
            self._conn = self._inbox = None
        return status

    def _message(self, wait_s: float) -> tuple[str, Any] | None:
        """What the worker says next; None if it says nothing for that long."""
        assert self._inbox is not None
        try:
            message = self._inbox.receive(wait_s)
        except inbox.Nonsense as error:
            raise self.misbehaved(f"it sent {error}") from None
        except (EOFError, OSError):
            raise self._died() from None
        if self._pid is not None:
            excess = self._allowance.exceeded(self._pid)
            if excess is not None:
                raise self.misbehaved(excess)
        if message is None and _has_ended(self._pid):
            raise self._died()  # and left the pipe to a process that it started
        return message

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
                self._await_start()
                return
            except (OSError, WorkerDied) as error:
                died = error if isinstance(error, WorkerDied) else self._died()
                if attempt == 2 or self._is_interrupted:
                    raise died from None

    def _await_start(self) -> None:
        """Wait until the worker says that it has the request."""
        waited_s = 0.0
        while True:
            begun = time.monotonic()
            message = self._message(_POLL_S)
            if message is not None:
                if message[0] == "started":
                    return
                raise self.misbehaved(f"it said {message[0]} before it started")
            if self._paused_at is None:
                waited_s += time.monotonic() - begun
            if waited_s > _START_S:
                raise self.misbehaved("it did not begin with a request")

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            pid = self._server.fork(self._settings | {"confined": self.is_confined}, theirs)
        with self._lock:
            self._conn, self._inbox, self._pid = ours, inbox.Inbox(ours), pid
            self._cpu_before_s = 0.0
            if self._paused_at is not None:
                child.signal_group(pid, signal.SIGSTOP)

    def _cpu_s(self) -> float:
        """CPU seconds of the request so far; a dead process tells until it is reaped."""
        return max(0.0, cpu_seconds(self._pid) - self._cpu_before_s)

    def _died(self) -> WorkerDied:
        _await_end(self._pid)  # or its status would be that of the kill
        used_s = self._cpu_s()
        status = self.kill()
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        if status is None:
            number = int(signal.SIGKILL)  # the fork server died, and the kernel killed its workers
        return WorkerDied(number, fork_server.tail(self._log), used_s)


def cpu_seconds(pid: int | None) -> float:
    """CPU time that a process has used; 0 if it is gone or this system does not say."""
    fields = _status(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _has_ended(pid: int | None) -> bool:
    """Whether a process is dead and waits to be reaped."""
    return _status(pid)[:1] == ["Z"]


def _status(pid: int | None) -> list[str]:
    """What the system says of a process, its state first; nothing if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _await_end(pid: int | None) -> None:
    """Wait a moment for a process that closed its pipe to end by itself."""
    until_s = time.monotonic() + _END_S
    while pathlib.Path(f"/proc/{pid}").exists() and not _has_ended(pid):
        if time.monotonic() > until_s:
            return
        time.sleep(0.001)
