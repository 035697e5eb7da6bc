"""The tuner's loop with an engine that needs no device: orders, failures, leases, networks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from felix import errors as engine_errors
from server import errors, states
from server.store import artifacts, control, events, jobs, leases, networks, tuners
from server.tuner import tuner
from tests.server.tuner.conftest import Bench
from tests.support import service_fakes

State = states.State


def test_a_job_goes_through(at: Bench) -> None:
    job = service_fakes.create(at.db, trials=6)
    assert at.tuner.work_once() and not at.tuner.work_once()
    after = service_fakes.get(at.db, job.id)
    assert (after.state, after.reason, after.n_trials) == (State.SUCCEEDED, "trials", 6)
    assert after.best_us == pytest.approx(100 / 6)
    assert after.started_at is not None and after.finished_at is not None
    assert after.finished_at >= after.started_at >= after.created_at
    with at.db.read() as tx:
        (bundle,) = artifacts.of_job(tx, job.id)
        assert jobs.code(tx, job.id, 0) == ("def main(): ...", "; llvm", None)
        (worker,) = tuners.every(tx, 60)
    assert b"".join(at.store.read(bundle.sha256)) == f"artifact of job {job.id}".encode()
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
    at: Bench, order: Callable[..., object], state: State
) -> None:
    job = service_fakes.create(at.db, trials=10_000)
    at.engine.pause_s = 0.01

    def act() -> None:
        service_fakes.write(at.db, order, job.id)

    at.meanwhile(act)
    after = service_fakes.get(at.db, job.id)
    assert after.state is state
    assert 0 < after.n_trials == len(at.engine.measured) < 5_000
    assert len(service_fakes.read(at.db, artifacts.of_job, job.id)) == (state is State.SUCCEEDED)
    assert after.reason == ("stopped" if state is State.SUCCEEDED else None)
    assert after.attempts == (1 if state is State.SUCCEEDED else 0)


def test_a_paused_job_goes_on_where_it_was(at: Bench) -> None:
    job = service_fakes.create(at.db, trials=100)
    at.engine.pause_s = 0.05

    def pause() -> None:
        service_fakes.write(at.db, control.pause, job.id)

    at.meanwhile(pause)
    n_before = service_fakes.get(at.db, job.id).n_trials
    assert 0 < n_before < 100
    at.engine.pause_s = 0.0
    assert not at.tuner.work_once()
    service_fakes.write(at.db, control.resume, job.id)
    after = at.worked(job.id)
    assert (after.state, after.n_trials) == (State.SUCCEEDED, 100)
    assert at.engine.resumed == [0, n_before]
    assert len(at.engine.measured) == len(set(at.engine.measured)) == 100


def test_a_leaving_tuner_puts_its_job_down(at: Bench) -> None:
    job = service_fakes.create(at.db, trials=10_000)
    at.engine.pause_s = 0.01
    thread = threading.Thread(target=at.tuner.run)
    thread.start()
    at.engine.begun.wait(120)
    at.tuner.leaving.set()
    thread.join(120)
    assert not thread.is_alive()
    after = service_fakes.get(at.db, job.id)
    assert (after.state, after.attempts) == (State.QUEUED, 0)


def test_a_job_to_end_early_waits_for_a_tuner(at: Bench) -> None:
    job = service_fakes.create(at.db, trials=100)
    fence = service_fakes.claim(at.db).fence
    service_fakes.add(at.db, fence, service_fakes.new_trial(0))
    with at.db.write() as tx:
        control.pause(tx, job.id)
        leases.release(tx, fence)
        control.stop(tx, job.id)
    time.sleep(0.1)  # more than a beat: the instruction is there when the engine reads it
    at.engine.pause_s = 0.05
    after = at.worked(job.id)
    assert (after.state, after.reason) == (State.SUCCEEDED, "stopped")
    assert after.n_trials < 100


def test_errors_of_the_machine_are_tried_again_and_end(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "decide", _at_once(tuner.decide))
    job = service_fakes.create(at.db)
    at.engine.error, at.engine.n_before_error = OSError("no space left"), 0
    for state in (State.QUEUED, State.QUEUED, State.FAILED):
        assert at.tuner.work_once()
        assert service_fakes.get(at.db, job.id).state is state
    after = service_fakes.get(at.db, job.id)
    assert after.error == "infrastructure"
    assert after.message is not None and "OSError: no space left" in after.message
    assert after.n_trials == 0


def test_attempts_count_from_the_last_progress(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "decide", _at_once(tuner.decide))
    job = service_fakes.create(at.db, trials=8)
    at.engine.error = OSError("no space left")
    for number in range(1, 7):  # twice as many attempts as without progress
        at.engine.n_before_error = number
        after = at.worked(job.id)
        assert (after.state, after.n_trials, after.attempts) == (State.QUEUED, number, 1)


def _at_once(decide: Callable[..., tuner.Decision]) -> Callable[..., tuner.Decision]:
    def decided(*args: object) -> tuner.Decision:
        decision = decide(*args)
        again_s = None if decision.retry_after_s is None else 0.0
        return tuner.Decision(decision.error, decision.message, again_s)

    return decided


def test_without_a_schedule_the_job_fails(at: Bench) -> None:
    job = service_fakes.create(at.db, trials=3)
    at.engine.failure = "none of 3 candidates ran correctly"
    at.engine.latency_of = lambda number: None
    after = at.worked(job.id)
    assert (after.state, after.error) == (State.FAILED, "no_schedule")
    assert after.n_failed == 3


def test_a_machine_that_measures_nothing_lets_go(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service_fakes.create(at.db, trials=1000)
    line = service_fakes.line
    monkeypatch.setattr(
        service_fakes,
        "line",
        lambda number, latency_us: line(number, None, error="infrastructure"),
    )
    after = at.worked(job.id)
    assert (after.state, after.n_trials) == (State.QUEUED, 24)
    assert after.message is not None and "none was the candidate's fault" in after.message
    assert after.not_before is not None


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


@pytest.mark.parametrize(
    "error", [None, engine_errors.TuningError("output 0 differs"), ValueError("a\ndefect")]
)
def test_a_failed_network_costs_its_artifact_only(at: Bench, error: Exception | None) -> None:
    at.engine.network_error = error
    job_id = service_fakes.create(at.db, kind="onnx", trials=4).id
    service_fakes.write(at.db, networks.create, job_id, *service_fakes.network())
    after = at.worked(job_id)
    assert (after.state, after.error, after.n_trials) == (states.State.SUCCEEDED, None, 4)
    with at.db.read() as tx:
        kinds = [file.kind for file in artifacts.of_job(tx, job_id)]
        (event,) = events.after(tx, job_id, kinds=[events.Type.NETWORK])
        network = networks.of_job(tx, job_id, jobs.tasks(tx, job_id))
    assert network is not None
    if error is None:
        assert kinds == ["network", "bundle"] and (network.call_us, network.failure) == (
            31.0,
            None,
        )
        assert network.latency_us == 20.0 and network.groups[1].untuned == "it sorts"
        assert event.payload == {"call_us": 31.0, "max_error": 1e-6, "failure": None}
        return
    failure = " ".join(str(error).split())
    assert kinds == ["bundle"] and network.call_us is None and network.failure == failure
    assert event.payload == {"failure": failure}
    assert network.groups[0].felix_us == after.best_us  # as it was measured


@pytest.mark.parametrize(
    ("reason", "error", "kinds"),
    [
        ("seconds", None, ["network"]),
        ("seconds", engine_errors.TuningError("there was no time"), []),
        ("trials", None, []),
    ],
)
def test_a_network_is_built_though_there_was_no_time_to_tune(
    at: Bench, reason: str, error: Exception | None, kinds: list[str]
) -> None:
    at.engine.reason, at.engine.failure, at.engine.network_error = reason, "nothing ran", error
    job_id = service_fakes.create(at.db, kind="onnx", trials=4).id
    service_fakes.write(at.db, networks.create, job_id, *service_fakes.network())
    after = at.worked(job_id)
    files = service_fakes.read(at.db, artifacts.of_job, job_id)
    assert [file.kind for file in files] == kinds
    if kinds:
        assert (after.state, after.reason) == (State.SUCCEEDED, "seconds")
    else:
        assert (after.state, after.error, after.message) == (
            State.FAILED,
            "no_schedule",
            "nothing ran",
        )


@pytest.mark.parametrize(
    "group",
    [
        {"name": "a\x00", "calls": 1},
        {"name": "a", "calls": -1},
        {"name": "a" * 501, "calls": 1},
        {"name": "a", "calls": 1, "felix_us": float("nan")},
        {"name": "a", "calls": 1, "ships": "x"},
    ],
)
def test_what_an_engine_says_of_a_network_is_checked(group: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        networks.checked({"call_us": 1.0, "max_error": 0.0, "groups": [group]})
