"""Worker processes as seen by the parent: start, call with a deadline, pause, replace."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from felix import errors

_PACKET_BYTES = 65536
#: Longest single wait on a pipe, so that time spent paused is noticed.
_POLL_S = 0.25
#: A busy worker may wait for a core this many times as long as it may compute.
_STARVED = 10.0
#: How often TVM's worker threads look for more work before they sleep, 0.1 to 0.5 us each. Enough
#: for the time between two timed calls; with TVM's 300,000 they keep the cores from builds and
#: search for up to 0.17 s after every candidate, and from resting.
_SPINS = 5_000


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


class Host:
    """The forking process, started when first needed and again if it dies."""

    def __init__(self, start_timeout_s: float) -> None:
        self.work_dir = pathlib.Path(tempfile.mkdtemp(prefix="felix-measure-"))
        self._start_timeout_s = start_timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the running host."""
        return self._process.pid if self._process is not None else None

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        with self._lock:
            self._launch()

    def fork(self, settings: dict[str, Any], theirs: Connection) -> int:
        """Fork a worker that talks over `theirs`; returns its pid.

        Raises:
            MeasureError: no host could be started.
        """
        with self._lock:
            for attempt in (1, 2):  # a host killed since the last fork is replaced once
                try:
                    return int(self._ask({"fork": settings}, [theirs.fileno()])["pid"])
                except ConnectionError:
                    self._drop()
                    if attempt == 2:
                        raise errors.MeasureError(f"cannot start workers: {self._log()}") from None
        raise AssertionError("unreachable")

    def wait(self, pid: int) -> int | None:
        """Reap a dead worker; its wait status, None if the host died with it."""
        with self._lock:
            if self._control is None:
                return None
            try:
                status: int | None = self._ask({"wait": pid}, [])["status"]
                return status
            except ConnectionError:
                self._drop()
                return None

    def close(self) -> None:
        """End the host and, through it, every worker."""
        with self._lock:
            self._closed = True
            self._drop()
            if self.work_dir.exists():  # the host removes it, unless it was killed
                shutil.rmtree(self.work_dir)

    def _launch(self) -> None:
        if self._closed:
            raise errors.MeasureError("the pool is closed")
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(pathlib.Path(__file__).resolve().parents[3])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {"TVM_THREAD_POOL_SPIN_COUNT": str(_SPINS)} | os.environ
        env |= {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        with theirs, open(self.work_dir / "host.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "felix.measure.pool.fork_server"),
                    *(str(theirs.fileno()), str(self.work_dir)),
                ],
                env=env | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal is the parent's to handle
            )
        self._control = ours
        self._ready = False

    def _ask(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One request in lock-step; ConnectionError when the host is gone."""
        self._launch()
        assert self._control is not None
        if not self._ready:
            self._control.settimeout(self._start_timeout_s)
            self._receive()
            self._control.settimeout(None)
            self._ready = True
        socket.send_fds(self._control, [json.dumps(request).encode()], fds)
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._control is not None
        try:
            packet = self._control.recv(_PACKET_BYTES)
        except TimeoutError:
            raise ConnectionError("the host did not start in time") from None
        if not packet:
            raise ConnectionError("the host is gone")
        answer: dict[str, Any] = json.loads(packet)
        return answer

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

    def _log(self) -> str:
        return tail(self.work_dir / "host.log") or "no message"


class Worker:
    """One worker; a fresh fork takes its place after a death, at the next call."""

    def __init__(self, host: Host, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self._host = host
        self._log = host.work_dir / f"{name}.log"
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
        return self._host.wait(pid) if pid is not None else None

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
            pid = self._host.fork(self._settings, theirs)
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
            number = int(signal.SIGKILL)  # the host died, and the kernel killed its workers
        return WorkerDied(number, tail(self._log), used_s)


def cpu_seconds(pid: int | None) -> float:
    """CPU time that a process has used; 0 if it is gone or this system does not say."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tail(path: pathlib.Path, characters: int = 300) -> str:
    """The end of a log file on one line; empty if there is none."""
    if not path.exists():
        return ""
    text = path.read_text(errors="replace").strip()
    return " ".join(text[-characters:].split())


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it died by itself; the caller learns that from the pipe
