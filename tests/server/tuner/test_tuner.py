"""The tuner's loop with an engine that needs no device: orders, failures, leases, artifacts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from felix import errors as engine_errors
from server import errors, states
from server.database import database
from server.store import artifacts, blobs, control, jobs, leases, progress, trials, tuners
from server.tuner import tuner
from tests.server.tuner.conftest import meanwhile
from tests.support import service_fakes

State = states.State


def test_a_job_goes_through(
    db: database.Database,
    store: blobs.LocalStore,
    engine: service_fakes.Engine,
    working: tuner.Tuner,
) -> None:
    job = service_fakes.create(db, trials=6)
    assert working.work_once() and not working.work_once()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.reason, after.n_trials) == (State.SUCCEEDED, "trials", 6)
    assert after.best_us == pytest.approx(100 / 6)
    assert after.started_at is not None and after.finished_at is not None
    assert after.finished_at >= after.started_at >= after.created_at
    with db.read() as tx:
        (bundle,) = artifacts.of_job(tx, job.id)
        assert jobs.code(tx, job.id, 0) == ("def main(): ...", "; llvm")
        (worker,) = tuners.every(tx, 60)
    assert b"".join(store.read(bundle.sha256)) == f"artifact of job {job.id}".encode()
    assert (worker.name, worker.n_jobs, worker.n_trials) == ("test tuner", 1, 6)


@pytest.mark.parametrize(
    ("order", "state"),
    [
        (control.pause, State.PAUSED),
        (control.cancel, State.CANCELLED),
        (control.stop, State.SUCCEEDED),
    ],
)
def test_orders_are_obeyed_within_a_round(
    db: database.Database,
    engine: service_fakes.Engine,
    working: tuner.Tuner,
    order: Callable[..., object],
    state: State,
) -> None:
    job = service_fakes.create(db, trials=10_000)
    engine.pause_s = 0.01

    def act() -> None:
        with db.write() as tx:
            order(tx, job.id)

    meanwhile(working, engine, act)
    after = service_fakes.get(db, job.id)
    assert after.state is state
    assert 0 < after.n_trials == len(engine.measured) < 5_000
    with db.read() as tx:
        assert len(artifacts.of_job(tx, job.id)) == (state is State.SUCCEEDED)
    assert after.reason == ("stopped" if state is State.SUCCEEDED else None)
    assert after.attempts == (1 if state is State.SUCCEEDED else 0)


def test_a_paused_job_goes_on_where_it_was(
    db: database.Database, engine: service_fakes.Engine, working: tuner.Tuner
) -> None:
    job = service_fakes.create(db, trials=40)
    engine.pause_s = 0.01

    def pause() -> None:
        with db.write() as tx:
            control.pause(tx, job.id)

    meanwhile(working, engine, pause)
    n_before = service_fakes.get(db, job.id).n_trials
    assert 0 < n_before < 40
    assert not working.work_once()
    with db.write() as tx:
        control.resume(tx, job.id)
    assert working.work_once()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.n_trials) == (State.SUCCEEDED, 40)
    assert engine.resumed == [0, n_before]
    assert len(engine.measured) == len(set(engine.measured)) == 40


def test_a_leaving_tuner_puts_its_job_down(
    db: database.Database, engine: service_fakes.Engine, working: tuner.Tuner
) -> None:
    job = service_fakes.create(db, trials=10_000)
    engine.pause_s = 0.01
    thread = threading.Thread(target=working.run)
    thread.start()
    engine.begun.wait(20)
    working.leaving.set()
    thread.join(20)
    assert not thread.is_alive()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.attempts) == (State.QUEUED, 0)


def test_a_job_to_end_early_waits_for_a_tuner(
    db: database.Database, engine: service_fakes.Engine, working: tuner.Tuner
) -> None:
    job = service_fakes.create(db, trials=100)
    fence = service_fakes.claim(db).fence
    service_fakes.add(db, fence, service_fakes.new_trial(0))
    with db.write() as tx:
        control.pause(tx, job.id)
        leases.release(tx, fence)
        control.stop(tx, job.id)
    time.sleep(0.1)  # more than a beat: the instruction is there when the engine reads it
    engine.pause_s = 0.05
    assert working.work_once()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.reason) == (State.SUCCEEDED, "stopped")
    assert after.n_trials < 100


def test_errors_of_the_workload_end_the_job(
    db: database.Database, engine: service_fakes.Engine, working: tuner.Tuner
) -> None:
    job = service_fakes.create(db)
    engine.error = engine_errors.WorkloadError("it cannot be scheduled")
    assert working.work_once()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.error) == (State.FAILED, "WorkloadError")
    assert after.message == "it cannot be scheduled"


def test_errors_of_the_machine_are_tried_again_and_end(
    db: database.Database,
    engine: service_fakes.Engine,
    working: tuner.Tuner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuner, "decide", _at_once(tuner.decide))
    job = service_fakes.create(db)
    engine.error, engine.n_before_error = OSError("no space left"), 0
    for state in (State.QUEUED, State.QUEUED, State.FAILED):
        assert working.work_once()
        assert service_fakes.get(db, job.id).state is state
    after = service_fakes.get(db, job.id)
    assert after.error == "infrastructure"
    assert after.message is not None and "OSError: no space left" in after.message
    assert after.n_trials == 0


def test_attempts_count_from_the_last_progress(
    db: database.Database,
    engine: service_fakes.Engine,
    working: tuner.Tuner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuner, "decide", _at_once(tuner.decide))
    job = service_fakes.create(db, trials=8)
    engine.error = OSError("no space left")
    for number in range(1, 7):  # twice as many attempts as without progress
        engine.n_before_error = number
        assert working.work_once()
        after = service_fakes.get(db, job.id)
        assert (after.state, after.n_trials, after.attempts) == (State.QUEUED, number, 1)


def _at_once(decide: Callable[..., tuner.Decision]) -> Callable[..., tuner.Decision]:
    def decided(*args: object) -> tuner.Decision:
        decision = decide(*args)
        again_s = None if decision.retry_after_s is None else 0.0
        return tuner.Decision(decision.error, decision.message, again_s)

    return decided


def test_without_a_schedule_the_job_fails(
    db: database.Database, engine: service_fakes.Engine, working: tuner.Tuner
) -> None:
    job = service_fakes.create(db, trials=3)
    engine.failure = "none of 3 candidates ran correctly"
    engine.latency_of = lambda number: None
    assert working.work_once()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.error) == (State.FAILED, "no_schedule")
    assert after.n_failed == 3


def test_a_machine_that_measures_nothing_lets_go(
    db: database.Database,
    engine: service_fakes.Engine,
    working: tuner.Tuner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = service_fakes.create(db, trials=1000)
    broken = service_fakes.new_trial
    monkeypatch.setattr(
        service_fakes,
        "new_trial",
        lambda number, latency_us: broken(number, None, error="infrastructure"),
    )
    assert working.work_once()
    after = service_fakes.get(db, job.id)
    assert (after.state, after.n_trials) == (State.QUEUED, 24)
    assert after.message is not None and "none was the candidate's fault" in after.message
    assert after.not_before is not None


def test_checkpoints_travel(
    db: database.Database, engine: service_fakes.Engine, working: tuner.Tuner
) -> None:
    job = service_fakes.create(db, trials=9)
    assert working.work_once()
    with db.read() as tx:
        assert progress.checkpoint(tx, job.id) == progress.Checkpoint(8, {"n": 8}, None)
        assert len(trials.records(tx, job.id)) == 9


@pytest.mark.parametrize(
    ("error", "attempts", "again"),
    [
        (engine_errors.WorkloadError("x"), 1, False),
        (errors.Conflict("x"), 1, False),
        (engine_errors.MeasureError("x"), 1, True),
        (errors.BlobError("x"), 2, True),
        (RuntimeError("x"), 1, True),
        (MemoryError(), 1, True),
        (RuntimeError("x"), 3, False),
    ],
)
def test_the_retry_policy(error: Exception, attempts: int, again: bool) -> None:
    decision = tuner.decide(error, attempts, max_attempts=3)
    assert (decision.retry_after_s is not None) == again
    assert decision.message
