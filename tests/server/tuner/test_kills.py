"""Tuners and engines killed with SIGKILL at random moments, and jobs that would hold a tuner.

Nothing is lost, nothing is there twice, nothing is stuck.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from tvm import te

from felix import workloads
from felix.task import Task
from server import settings, states
from server.database import database, models
from server.store import artifacts, blobs, control, events, job_lists, jobs
from server.tuner import tuner
from server.tuner.process import engine_process
from tests.support import engine_fakes, service_fakes, share, warm
from tests.support.waiting import until

N_KILLS = share.rounds(4, 25)
N_ENGINE_KILLS = share.rounds(3, 12)
N_TUNERS = 3
N_TRIALS = 64

CHOSEN = settings.Settings(lease_s=20.0, beat_s=0.1, poll_s=0.02, reap_s=0.1, max_attempts=10_000)


def submit(db: database.Database) -> int:
    """Queue a job that every engine here can work on."""
    target = "llvm -num-cores 2"
    task = workloads.gemm(64, 64, 64, target=target)
    more: dict[str, Any] = {"strategy": "local", "options": {"round_size": 8}}
    return service_fakes.create_for(db, task, target=target, trials=N_TRIALS, **more).id


def state(db: database.Database, job_id: int) -> states.State:
    return service_fakes.get(db, job_id).state


def check(db: database.Database, job_id: int, error: str) -> int:
    """Nothing lost or twice; how often the job was put back for this error."""
    with db.read() as tx:
        job, rows = jobs.get(tx, job_id), service_fakes.trials_of(tx, job_id)
        log = events.after(tx, job_id, limit=100_000)
        assert len(artifacts.of_job(tx, job_id)) == 1
    numbers = list(range(1, N_TRIALS + 1))
    assert (job.state, job.reason, job.n_trials) == (states.State.SUCCEEDED, "trials", N_TRIALS)
    assert [row.number for row in rows] == numbers
    assert len({row.schedule_hash for row in rows}) == N_TRIALS
    assert [event.seq for event in log] == list(range(1, job.last_seq + 1))
    assert [event.payload["trial"] for event in log if event.type == "trial"] == numbers
    return sum(event.payload.get("error") == error for event in log)


class Tuners:
    """Tuner processes forked by `tests.support.service_kill_child`."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        command = [sys.executable, "-m", "tests.support.service_kill_child", url, str(folder)]
        self.forks = warm.Popen(
            command,
            warm=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=open(folder / "log", "w"),
        )
        self.pids: list[int] = []
        assert self._line() == "ready"

    def start(self) -> None:
        assert self.forks.stdin is not None
        self.forks.stdin.write("fork\n")
        self.forks.stdin.flush()
        self.pids.append(int(self._line()))

    def kill(self, pid: int) -> None:
        self.pids.remove(pid)
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.forks.kill()
        self.forks.communicate()

    def _line(self) -> str:
        assert self.forks.stdout is not None
        return self.forks.stdout.readline().strip()


def busy(db: database.Database, pids: Sequence[int]) -> list[int]:
    """Those of these tuners that have a job, once one has; dead ones have some for a while."""
    has_job = sa.select(models.Worker.pid).join(
        models.Job, models.Job.worker_id == models.Worker.id
    )
    found: list[int] = []

    def look() -> list[int]:
        with db.read() as tx:
            known = set(tx.scalars(has_job))
        found[:] = [pid for pid in pids if pid in known]
        return found

    until(look)
    return found


def n_open(db: database.Database) -> int:
    counts = service_fakes.read(db, job_lists.counts)
    return sum(count for state, count in counts.items() if state not in states.ENDED)


@pytest.mark.parametrize("url", share.of(["sqlite", "postgresql"], 1), indirect=True)
def test_random_kills(db: database.Database, url: str, tmp_path: pathlib.Path) -> None:
    rng = random.Random(1)
    job_ids = [submit(db) for _ in range(2)]
    with contextlib.closing(Tuners(url, tmp_path)) as running:
        for _ in range(N_TUNERS):
            running.start()
        for _ in range(N_KILLS):
            victims = busy(db, running.pids)  # kills of idle tuners show little
            time.sleep(rng.uniform(0.05, 0.5))
            running.kill(rng.choice(victims if rng.random() < 0.5 else running.pids))
            running.start()
            if n_open(db) < 2:
                job_ids.append(submit(db))
        until(lambda: n_open(db) == 0, 300, lambda: (tmp_path / "log").read_text()[-3000:])
    acknowledged: dict[int, dict[int, Any]] = collections.defaultdict(dict)
    for line in (tmp_path / "acknowledged").read_text().splitlines():
        job, number, schedule, latency = line.split()
        acknowledged[int(job)][int(number)] = (schedule, float(latency))
    for job_id in job_ids:
        with db.read() as tx:
            rows = {
                t.number: (t.schedule_hash, t.latency_us)
                for t in service_fakes.trials_of(tx, job_id)
            }
        assert acknowledged[job_id].items() <= rows.items()
    n_interrupted = sum(check(db, job_id, "lease_expired") for job_id in job_ids)
    assert n_interrupted >= N_KILLS // 4, "the kills hit idle tuners: the test shows little"


@contextlib.contextmanager
def working(
    db: database.Database, folder: pathlib.Path, chosen: settings.Settings, **engine: Any
) -> Iterator[engine_process.EngineProcess]:
    """The engine of a tuner at work."""
    made = engine_process.EngineProcess(chosen, **engine)
    at_work = tuner.Tuner(db, blobs.LocalStore(folder / "blobs"), made, chosen)
    with contextlib.closing(at_work):
        thread = threading.Thread(target=at_work.run)
        thread.start()
        try:
            yield made
        finally:
            at_work.leaving.set()
            thread.join()


@pytest.mark.parametrize(
    "factory", share.of(["tests.support.service_kill_child:make_engine", engine_fakes.FACTORY], 1)
)
def test_random_kills_of_engines(
    db: database.Database, tmp_path: pathlib.Path, factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tuner lives."""
    at_once = tuner.Decision("infrastructure", "killed", 0.0)
    monkeypatch.setattr(tuner, "decide", lambda *_: at_once)
    rng, job_ids = random.Random(3), [submit(db)]
    with working(db, tmp_path, CHOSEN, factory=factory) as engine:
        for _ in range(N_ENGINE_KILLS):
            if state(db, job_ids[-1]) in states.ENDED:
                job_ids.append(submit(db))
            until(lambda: state(db, job_ids[-1]) is not states.State.QUEUED)
            time.sleep(rng.uniform(0.0, 0.3))
            kill(engine)
        until(lambda: all(state(db, job_id) in states.ENDED for job_id in job_ids), 300)
    n_interrupted = sum(check(db, job_id, "infrastructure") for job_id in job_ids)
    assert n_interrupted >= N_ENGINE_KILLS // 3


def kill(engine: engine_process.EngineProcess) -> None:
    """Kill the engine, and wait until its tuner knows: another kill would hit nothing."""
    child = engine._child
    if child.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        until(lambda: engine._child is not child)


def chain(depth: int) -> Task:
    """Products of matrices: each has many sketches, and all of them long formulas."""

    def product(x: te.Tensor, number: int) -> te.Tensor:
        k = te.reduce_axis((0, 64), name=f"k{number}")
        return te.compute(
            (64, 64), lambda i, j: te.sum(x[i, k] * x[k, j], axis=k), name=f"product_{number}"
        )

    first = last = te.placeholder((64, 64), name="a")
    for number in range(depth):
        last = product(last, number)
    return Task.from_te([first, last], "llvm", name=f"chain of {depth}")


def computed_s(engine: engine_process.EngineProcess) -> float:
    """What the engine and its processes have computed."""
    seconds = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(engine._child.pid)
        for each in (process, *process.children(recursive=True)):
            seconds += each.cpu_times().user
    return seconds


@pytest.mark.slow("formulas that take a quarter of a minute of the real engine")
def test_chained_reductions_do_not_hold_a_tuner(
    db: database.Database, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formulas that take minutes, on the real engine: cancelled, limited, and others go on."""
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    chosen = settings.Settings(beat_s=0.1, poll_s=0.05, stop_s=0.5, task_open_s=600.0)

    def submitted(task: Task) -> int:
        return service_fakes.create_for(db, task, trials=4, strategy="local").id

    def has_begun(job_id: int) -> bool:
        return bool(service_fakes.read(db, events.after, job_id, kinds=[events.Type.STARTED]))

    with working(db, tmp_path, chosen) as engine:
        cancelled = submitted(chain(32))
        until(lambda: has_begun(cancelled))
        begun_s = computed_s(engine)
        until(lambda: computed_s(engine) > begun_s + 0.5)
        service_fakes.write(db, control.cancel, cancelled)
        until(lambda: state(db, cancelled) in states.ENDED)
        engine._limits = engine._limits.model_copy(update={"task_open_s": 1.0})
        beyond = submitted(chain(33))
        until(lambda: state(db, beyond) in states.ENDED)
        engine._limits = engine._limits.model_copy(update={"task_open_s": 600.0})
        normal = submitted(workloads.gemm(16, 16, 16, target="llvm"))
        until(lambda: state(db, normal) in states.ENDED)
    assert state(db, cancelled) is states.State.CANCELLED
    failed = service_fakes.get(db, beyond)
    assert (failed.state, failed.error) == (states.State.FAILED, "TimeLimit")
    expected = "building the formulas of task 'chain of 33' took longer than 1 s"
    assert failed.message is not None and failed.message.startswith(expected)
    assert state(db, normal) is states.State.SUCCEEDED
