"""Tuners killed with SIGKILL at random moments: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from felix import workloads
from server import states
from server.database import database, models
from server.store import artifacts, events, job_lists, jobs, trials
from tests.server.conftest import on_both_databases
from tests.support import service_fakes

#: On each of the two databases.
N_KILLS = 25
N_TUNERS = 3
N_TRIALS = 64


class Tuners:
    """Tuner processes forked by `tests.support.service_kill_child`."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        command = [sys.executable, "-m", "tests.support.service_kill_child", url, str(folder)]
        self.zygote = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=open(folder / "log", "w"),
        )
        self.pids: list[int] = []
        assert self._line() == "ready"

    def start(self) -> None:
        assert self.zygote.stdin is not None
        self.zygote.stdin.write("fork\n")
        self.zygote.stdin.flush()
        self.pids.append(int(self._line()))

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pids.pop(index), number)

    def _line(self) -> str:
        assert self.zygote.stdout is not None
        return self.zygote.stdout.readline().strip()


@contextlib.contextmanager
def tuners(url: str, folder: pathlib.Path) -> Iterator[Tuners]:
    made = Tuners(url, folder)
    try:
        yield made
    finally:
        for pid in made.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        made.zygote.kill()
        made.zygote.wait()
        for pipe in (made.zygote.stdin, made.zygote.stdout):
            assert pipe is not None
            pipe.close()


def submit(db: database.Database) -> int:
    """Queue a job of the real engine."""
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


def busy(db: database.Database, pids: Sequence[int]) -> list[int]:
    """Those of these tuners that have a job, once one has; dead ones have some for a while."""
    deadline_s = time.monotonic() + 60
    has_job = sa.select(models.Worker.pid).join(
        models.Job, models.Job.worker_id == models.Worker.id
    )
    while True:
        with db.read() as tx:
            known = set(tx.scalars(has_job))
        found = [pid for pid in pids if pid in known]
        if found:
            return found
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def n_open(db: database.Database) -> int:
    with db.read() as tx:
        counts = job_lists.counts(tx)
    return sum(count for state, count in counts.items() if state not in states.ENDED)


@on_both_databases
@pytest.mark.timeout(300)
def test_random_kills(db: database.Database, url: str, tmp_path: pathlib.Path) -> None:
    rng = random.Random(1)
    job_ids = [submit(db) for _ in range(2)]
    with tuners(url, tmp_path) as running:
        for _ in range(N_TUNERS):
            running.start()
        for _ in range(N_KILLS):
            victims = busy(db, running.pids)  # kills of idle tuners show little
            time.sleep(rng.uniform(0.05, 0.5))
            victim = rng.choice(victims if rng.random() < 0.5 else running.pids)
            running.kill(running.pids.index(victim))
            running.start()
            if n_open(db) < 2:
                job_ids.append(submit(db))
        deadline_s = time.monotonic() + 150
        while n_open(db) and time.monotonic() < deadline_s:
            time.sleep(0.1)
    log_text = (tmp_path / "log").read_text()[-3000:]
    assert n_open(db) == 0, f"a job is stuck:\n{log_text}"
    acknowledged = collections.defaultdict(dict)
    for line in (tmp_path / "acknowledged").read_text().splitlines():
        job_id, number, schedule, latency = line.split()
        acknowledged[int(job_id)][int(number)] = (schedule, float(latency))
    n_interrupted = sum(check(db, job_id, acknowledged[job_id]) for job_id in job_ids)
    assert n_interrupted >= N_KILLS // 4, "the kills hit idle tuners: the test shows little"


def check(db: database.Database, job_id: int, acknowledged: dict[int, Any]) -> int:
    """Nothing lost or twice; how often the job was taken from a dead tuner."""
    with db.read() as tx:
        job = jobs.get(tx, job_id)
        rows = list(trials.stream(tx, job_id))
        log = events.after(tx, job_id, limit=100_000)
        bundles = artifacts.of_job(tx, job_id)
    assert (job.state, job.reason) == (states.State.SUCCEEDED, "trials")
    assert [row.number for row in rows] == list(range(1, N_TRIALS + 1))
    assert job.n_trials == N_TRIALS
    assert len({row.schedule_hash for row in rows}) == N_TRIALS
    stored = {row.number: (row.schedule_hash, row.latency_us) for row in rows}
    assert {number: stored[number] for number in acknowledged} == acknowledged
    assert [event.seq for event in log] == list(range(1, job.last_seq + 1))
    trial_numbers = [event.payload["trial"] for event in log if event.type == "trial"]
    assert trial_numbers == list(range(1, N_TRIALS + 1))
    assert len(bundles) == 1
    return sum(event.payload.get("error") == "lease_expired" for event in log)
