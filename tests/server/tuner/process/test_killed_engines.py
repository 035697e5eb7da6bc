"""Engines killed with SIGKILL at random moments while their tuner lives: nothing lost or twice."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from felix import workloads
from server import settings, states
from server.database import database
from server.store import artifacts, blobs, events, jobs, trials
from server.tuner import tuner
from server.tuner.process import engine_process, limits
from tests.support import engine_fakes, service_fakes

N_KILLS = 12
N_TRIALS = 64

CHOSEN = settings.Settings(lease_s=20.0, beat_s=0.1, poll_s=0.02, reap_s=0.1, max_attempts=10_000)


def submit(db: database.Database) -> int:
    """Queue a job that both engines can work on."""
    task = workloads.gemm(64, 64, 64, target="llvm -num-cores 2")
    new = jobs.NewTask(
        name=task.name,
        weight=1.0,
        flops=float(task.flops),
        min_bytes=float(task.min_bytes),
        program=task.to_json(),
    )
    return service_fakes.create(
        db,
        target="llvm -num-cores 2",
        tasks=(new,),
        trials=N_TRIALS,
        strategy="local",
        options={"round_size": 8},
    ).id


@pytest.mark.parametrize(
    "factory", [engine_fakes.FACTORY, "tests.support.service_kill_child:make_engine"]
)
@pytest.mark.timeout(300)
def test_random_kills_of_engines(
    db: database.Database, tmp_path: pathlib.Path, factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = tuner.Decision("infrastructure", "killed", 0.0)
    monkeypatch.setattr(tuner, "decide", lambda *_: at_once)
    rng = random.Random(3)
    engine = engine_process.EngineProcess(limits.Limits.of(CHOSEN), factory=factory)
    working = tuner.Tuner(db, blobs.LocalStore(tmp_path / "blobs"), engine, CHOSEN)
    job_ids = [submit(db)]
    with contextlib.closing(working):
        thread = threading.Thread(target=working.run)
        thread.start()
        try:
            for _ in range(N_KILLS):
                if service_fakes.get(db, job_ids[-1]).state in states.ENDED:
                    job_ids.append(submit(db))
                wait_until_running(db, job_ids[-1])
                time.sleep(rng.uniform(0.0, 0.3))
                kill(engine)
            wait_until(
                lambda: all(service_fakes.get(db, n).state in states.ENDED for n in job_ids), 200
            )
        finally:
            working.leaving.set()
            thread.join()
    assert sum(check(db, job_id) for job_id in job_ids) >= N_KILLS // 3


def kill(engine: engine_process.EngineProcess) -> None:
    """Kill the engine, and wait until its tuner knows: another kill would hit nothing."""
    child = engine._child
    if child.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: engine._child is not child)


def wait_until_running(db: database.Database, job_id: int) -> None:
    wait_until(lambda: service_fakes.get(db, job_id).state is not states.State.QUEUED)


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def check(db: database.Database, job_id: int) -> int:
    """Nothing lost or twice; how often the job's engine was killed."""
    with db.read() as tx:
        job, stored = jobs.get(tx, job_id), list(trials.stream(tx, job_id))
        log = events.after(tx, job_id, limit=100_000)
        assert len(artifacts.of_job(tx, job_id)) == 1
    assert (job.state, job.reason) == (states.State.SUCCEEDED, "trials")
    assert [trial.number for trial in stored] == list(range(1, N_TRIALS + 1))
    assert len({trial.schedule_hash for trial in stored}) == N_TRIALS
    numbers = [event.payload["trial"] for event in log if event.type == "trial"]
    assert numbers == list(range(1, N_TRIALS + 1))
    assert [event.seq for event in log] == list(range(1, job.last_seq + 1))
    return sum(event.payload.get("error") == "infrastructure" for event in log)
