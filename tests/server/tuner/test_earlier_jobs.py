"""The tuner with what earlier jobs measured: nothing twice, no trials where none are needed."""

from __future__ import annotations

from typing import Any

import pytest

from felix import records, workloads
from felix.tuning import task_run as engine_jobs
from server import states
from server.database import database
from server.store import artifacts, jobs, leases, rows, trials
from server.store.across_jobs import reuse
from server.tuner import claimed_job
from tests.support import service_fakes, service_kill_child, tuning_fakes

TARGET, DEVICE = "llvm -num-cores 2", "llvm/x/fake"


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_fakes.use(monkeypatch)
    monkeypatch.setattr(engine_jobs, "fingerprint", lambda mod: None)


def new_job(*sizes: int, trials_each: int = 16) -> jobs.NewJob:
    tasks = []
    for m in sizes:
        task = workloads.gemm(m, 64, 64, target=TARGET)
        tasks.append(
            jobs.NewTask(name=task.name, weight=1.0, flops=float(task.flops), min_bytes=1e3,
                         program=task.to_json(), program_key=task.program_key)
        )  # fmt: skip
    return service_fakes.new_job(
        target=TARGET, tasks=tuple(tasks), trials=trials_each * len(tasks), strategy="random",
        options={"round_size": 8},
    )  # fmt: skip


def submit(db: database.Database, new: jobs.NewJob, versions: dict[str, str]) -> rows.Job:
    with db.write() as tx:
        job = jobs.create(tx, new).job
        request = reuse.Request(
            job_id=job.id, new=new, versions=versions, device_keys=[DEVICE], project="default",
            store=service_fakes.MemoryStore(),
        )  # fmt: skip
        reuse.apply(tx, request)
        return jobs.get(tx, job.id)


def run(db: database.Database) -> claimed_job.ClaimedJob:
    """Work on the next job until it succeeds."""
    at = service_fakes.claim_next(db)
    assert service_kill_child.FakeDeviceEngine().run(at).failure is None
    bundle = artifacts.NewArtifact(
        name="a.zip", kind="bundle", media_type="application/zip", sha256="0" * 64, size_bytes=1
    )
    at.write(lambda tx: artifacts.add(tx, at.fence, bundle))
    at.write(lambda tx: leases.succeed(tx, at.fence, "trials"))
    return at


def schedules(db: database.Database, job_id: int) -> list[tuple[int, str, float | None]]:
    with db.read() as tx:
        return [(t.task, t.schedule_hash, t.latency_us) for t in trials.stream(tx, job_id)]


def test_a_longer_job_measures_only_what_is_new(
    db: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit(db, new_job(64), records.versions())
    run(db)
    longer = submit(db, new_job(64, trials_each=40), records.versions())
    assert longer.n_trials == 16
    measured: list[Any] = []
    add_trial = claimed_job.ClaimedJob.add_trial
    monkeypatch.setattr(
        claimed_job.ClaimedJob, "add_trial",
        lambda at, new: (measured.append(new), add_trial(at, new))[1],
    )  # fmt: skip
    run(db)
    after = service_fakes.get(db, longer.id)
    assert (after.n_trials, len(measured)) == (40, 24)
    known, every = schedules(db, first.id), schedules(db, longer.id)
    assert every[:16] == known and len({each[:2] for each in every}) == 40
    assert after.best_us is not None and after.best_us <= service_fakes.get(db, first.id).best_us


def test_a_known_task_of_two_gets_no_trials(db: database.Database) -> None:
    submit(db, new_job(64), records.versions())
    run(db)
    both = submit(db, new_job(64, 32), records.versions())
    assert both.n_trials == 16
    run(db)
    with db.read() as tx:
        made = jobs.tasks(tx, both.id)
    assert [task.n_trials for task in made] == [16, 16]
    assert [task.settled for task in made] == [True, False]
    assert service_fakes.get(db, both.id).best_us == sum(task.best_us or 0.0 for task in made)


def test_tasks_of_two_jobs_together_need_no_tuning(db: database.Database) -> None:
    for size in (64, 32):
        submit(db, new_job(size), records.versions())
        run(db)
    both = submit(db, new_job(64, 32), records.versions())
    assert both.state is states.State.QUEUED and both.n_trials == 32
    run(db)
    assert service_fakes.get(db, both.id).n_trials == 32


def test_the_fastest_schedules_of_another_version_are_tried_first(db: database.Database) -> None:
    old = submit(db, new_job(64, trials_each=24), records.versions())
    run(db)
    with db.write() as tx:
        tx.get_one(jobs.models.Job, old.id).versions = {"felix": "0.0.1"}
    job = submit(db, new_job(64), records.versions())
    assert job.n_trials == 0
    run(db)
    ranked = sorted(schedules(db, old.id), key=lambda each: each[2] or 0.0)
    now = [each[1] for each in schedules(db, job.id)]
    assert set(now[:8]) == {each[1] for each in ranked[:8]}
    assert len(now) == len(set(now)) == 16
