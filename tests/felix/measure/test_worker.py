"""Calls of a worker process: who is told what, and what a lost request had cost."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from multiprocessing.connection import Connection
from typing import Any

import pytest

from felix import errors
from felix.measure import inbox, locks, rights
from felix.measure import worker as pool_worker


class FakeForkServer:
    """Forks workers of this process, each of which runs `serve`."""

    def __init__(self, work_dir: pathlib.Path, serve: Callable[[Connection], None]) -> None:
        self.work_dir = work_dir
        self.n_forks = 0
        self._serve = serve

    def fork(self, settings: object, theirs: Connection) -> int:
        self.n_forks += 1
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)
            return pid
        try:
            os.setpgid(0, 0)
            while True:
                theirs.recv()
                inbox.send(theirs, "started")
                self._serve(theirs)
                inbox.send(theirs, "done", {"seconds": 0.0})
        finally:
            os._exit(0)

    def wait(self, pid: int) -> int | None:
        return os.waitpid(pid, 0)[1]


def _wants_quiet(conn: Connection) -> None:
    inbox.send(conn, "quiet")
    conn.recv()


def _stands_still(conn: Connection) -> None:
    time.sleep(20)


def _computes(conn: Connection) -> None:
    while time.process_time() < 20:
        pass


def _computes_and_dies(conn: Connection) -> None:
    before_s = time.process_time()
    while time.process_time() - before_s < 0.3:
        pass
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.fixture
def worker(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[pool_worker.Worker]:
    server: Any = FakeForkServer(tmp_path, request.param)
    log = tmp_path / "worker.log"
    allowance = rights.Allowance((), log, 1 << 30, rights.BUILD_PROCESSES)
    created = pool_worker.Worker(server, "worker", {"log": str(log)}, allowance)
    yield created
    created.kill()


@pytest.mark.parametrize("worker", [_wants_quiet], indirect=True)
def test_what_keeps_others_off_fails_by_itself(
    worker: pool_worker.Worker, tmp_path: pathlib.Path
) -> None:
    """And is not told as the death of the worker."""
    lock = locks.DeviceLock(tmp_path / "no-such-folder" / "device.lock")
    with pytest.raises(errors.MeasureError, match="no-such-folder"):
        worker.call({}, 5.0, lock.acquire)
    assert worker.pid is None  # it waited for an answer
    assert worker.call({"verb": "open"}, 5.0, lambda: None) == {"seconds": 0.0}


@pytest.mark.parametrize("worker", [_wants_quiet], indirect=True)
def test_a_worker_that_dies_while_others_are_kept_off_is_told(worker: pool_worker.Worker) -> None:
    def kills() -> None:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        time.sleep(0.1)

    with pytest.raises(pool_worker.WorkerDied, match="SIGKILL"):
        worker.call({}, 5.0, kills)


@pytest.mark.parametrize("worker", [_computes], indirect=True)
def test_a_build_that_was_cut_cost_cpu_seconds(
    worker: pool_worker.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those in which it stood still, and not those of another build."""
    monkeypatch.setattr(pool_worker, "_STARVED", 1e3)  # a busy machine gives it few of them

    def stop() -> None:
        while (pid := worker.pid) is None:  # the call below starts it
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)

    with futures.ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(stop)
        with pytest.raises(pool_worker.WorkerTimeout, match=r"within 0\.5 CPU seconds$") as caught:
            worker.call({}, 0.5, busy=True)
        stopped.result()
    assert 0.5 <= caught.value.cpu_s < 0.9


@pytest.mark.parametrize(("busy", "timeout_s"), [(False, 0.5), (True, 0.05)])
@pytest.mark.parametrize("worker", [_stands_still], indirect=True)
def test_who_does_not_compute_is_cut_by_the_wall_clock(
    worker: pool_worker.Worker, busy: bool, timeout_s: float
) -> None:
    start = time.monotonic()
    with pytest.raises(pool_worker.WorkerTimeout, match=rf"within {timeout_s} s$") as caught:
        worker.call({}, timeout_s, busy=busy)
    assert caught.value.cpu_s < timeout_s and time.monotonic() - start >= 0.5


def _answers_late(conn: Connection) -> None:
    time.sleep(1.0)


@pytest.mark.parametrize("worker", [_answers_late], indirect=True)
def test_time_in_which_this_process_stands_still_is_not_charged(
    worker: pool_worker.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-Z in a terminal."""
    message = pool_worker.Worker._message

    def late(self: pool_worker.Worker, wait_s: float) -> tuple[str, Any] | None:
        result = message(self, wait_s)
        time.sleep(1.5)
        return result

    monkeypatch.setattr(pool_worker.Worker, "_message", late)
    assert worker.call({"verb": "open"}, 1.1) == {"seconds": 0.0}


@pytest.mark.parametrize("worker", [_computes_and_dies], indirect=True)
def test_a_build_that_died_cost_cpu_seconds(worker: pool_worker.Worker) -> None:
    with pytest.raises(pool_worker.WorkerDied, match="SIGSEGV") as caught:
        worker.call({}, 5.0, busy=True)
    assert 0.2 < caught.value.cpu_s < 1.0
