"""Jobs that would hold their tuner: deaf, endless, greedy, crashing; tuners that are killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from server import settings, states
from server.database import database
from server.store import (
    artifacts,
    blobs,
    control,
    events,
    jobs,
    keys,
    leases,
    progress,
    trials,
    tuners,
)
from server.tuner import heartbeat, tuner
from server.tuner.process import engine_process, limits, zygote
from tests.support import engine_fakes, service_fakes

State = states.State

FAST = settings.Settings(
    lease_s=20.0,
    beat_s=0.02,
    poll_s=0.02,
    reap_s=0.05,
    max_attempts=3,
    stop_s=0.5,
    task_open_s=1.0,
    step_s=2.0,
    engine_bytes=400 << 20,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[engine_process.EngineProcess]:
    """One for all tests: it is to survive what its jobs do."""
    made = engine_process.EngineProcess(limits.Limits.of(FAST), factory=engine_fakes.FACTORY)
    yield made
    made.close()


@pytest.fixture
def working(
    db: database.Database,
    engine: engine_process.EngineProcess,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuner.Tuner]:
    made = tuner.Tuner(db, blobs.LocalStore(tmp_path / "blobs"), engine, FAST)
    yield made
    monkeypatch.setattr(engine, "close", lambda: None)
    made.close()


@pytest.fixture
def patient(
    engine: engine_process.EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> limits.Limits:
    """No step has a limit that ends before the test acts, however slow the machine."""
    patient = dataclasses.replace(engine._limits, task_open_s=600.0, step_s=600.0)
    monkeypatch.setattr(engine, "_limits", patient)
    return patient


def submit(db: database.Database, act: str = "", **changes: object) -> int:
    return service_fakes.create(db, options={"act": act}, **{"trials": 8} | changes).id


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def work(working: tuner.Tuner) -> None:
    """Work on one job; the engine may have to be made again first."""
    wait_until(working.work_once)


def wait_for_trials(db: database.Database, job_id: int, n: int) -> None:
    wait_until(lambda: service_fakes.get(db, job_id).n_trials >= n)


@contextlib.contextmanager
def at_work(working: tuner.Tuner) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work, args=(working,))
    thread.start()
    try:
        yield thread
    except BaseException:
        working.leaving.set()  # the engine is of the next test, too
        thread.join(60)
        raise
    thread.join(60)
    assert not thread.is_alive()


def test_a_job_goes_through(db: database.Database, working: tuner.Tuner) -> None:
    job_id = submit(db, trials=10)
    work(working)
    after = service_fakes.get(db, job_id)
    assert (after.state, after.reason, after.n_trials) == (State.SUCCEEDED, "trials", 10)
    assert after.target_key == "llvm/test"
    with db.read() as tx:
        assert progress.checkpoint(tx, job_id) == progress.Checkpoint(8, {"n": 8}, b"tensors")
        assert trials.records(tx, job_id) == [f"record {number}" for number in range(10)]
        assert jobs.code(tx, job_id, 0) == ("def main(): ...", "; llvm")
        assert len(artifacts.of_job(tx, job_id)) == 1


def test_what_an_engine_says_of_its_devices_is_reported(
    db: database.Database, working: tuner.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "REPORT_S", 0.0)

    def counts() -> set[tuple[str, str, int, int, int]]:
        working.work_once()  # an engine without a job is heard when the tuner looks for one
        with db.read() as tx:
            found = tuners.reports_of(tx, [working.worker_id])
        return {(r.place, r.target_key, r.queue, r.n_measured, r.n_failed) for r in found}

    wait_until(lambda: ("cpu:0", "llvm/test", 1, 4, 2) in counts())
    with db.read() as tx:
        (report,) = tuners.reports_of(tx, [working.worker_id])
    assert report.host and report.versions == {"felix": "test"} and report.error_rate == 0.5


def test_a_deaf_job_is_cancelled_and_the_next_one_runs(
    db: database.Database,
    working: tuner.Tuner,
    engine: engine_process.EngineProcess,
    patient: limits.Limits,
) -> None:
    job_id, other_id = submit(db, "deaf"), submit(db)
    with at_work(working):
        wait_for_trials(db, job_id, 4)
        engine_pid = engine._child.pid
        started_s = time.monotonic()
        with db.write() as tx:
            control.cancel(tx, job_id)
    assert time.monotonic() - started_s < 5.0
    assert engine_pid is not None
    wait_until(lambda: not psutil.pid_exists(engine_pid))
    after = service_fakes.get(db, job_id)
    assert (after.state, after.n_trials) == (State.CANCELLED, 4)
    work(working)
    assert service_fakes.get(db, other_id).state is State.SUCCEEDED


@pytest.mark.parametrize(("order", "state"), [(control.pause, State.PAUSED), (None, State.QUEUED)])
def test_a_deaf_job_is_put_down(
    db: database.Database,
    working: tuner.Tuner,
    patient: limits.Limits,
    order: Callable[..., object] | None,
    state: State,
) -> None:
    job_id = submit(db, "deaf")
    with at_work(working):
        wait_for_trials(db, job_id, 4)
        with db.write() as tx:
            if order is not None:
                order(tx, job_id)
        if order is None:
            working.leaving.set()
    after = service_fakes.get(db, job_id)
    assert (after.state, after.n_trials, after.attempts) == (state, 4, 0)


def test_an_engine_that_holds_much_memory_is_replaced_after_its_artifact(
    db: database.Database, working: tuner.Tuner, engine: engine_process.EngineProcess
) -> None:
    job_id = submit(db, "keep")
    work(working)
    assert service_fakes.get(db, job_id).state is State.SUCCEEDED
    child = engine._child
    assert child.rss_bytes() > FAST.engine_bytes / 2
    wait_until(engine.is_ready)
    assert engine._child is not child


def submit_as(db: database.Database, name: str, act: str = "", trials: int = 8) -> int:
    job_id = submit(db, act, trials=trials)
    with db.write() as tx:
        key_id = keys.create(tx, keys.NewKey(name=name, can_submit=True)).key.id
        tx.get_one(jobs.models.Job, job_id).key_id = key_id
    return job_id


@pytest.mark.parametrize(("act", "trials"), [("deaf", 8), ("", 400)])
def test_a_job_yields_to_a_new_one(
    db: database.Database,
    working: tuner.Tuner,
    monkeypatch: pytest.MonkeyPatch,
    patient: limits.Limits,
    act: str,
    trials: int,
) -> None:
    monkeypatch.setattr(limits, "ROUND_S", 0.5)
    working._settings = FAST.model_copy(update={"slice_s": 0.2})
    long_id = submit_as(db, "long", act, trials)
    with at_work(working):
        wait_for_trials(db, long_id, 4)
        new_id = submit_as(db, "new")
    put_back = service_fakes.get(db, long_id)
    assert (put_back.state, put_back.error) == (State.QUEUED, None)
    assert put_back.n_trials == 4 if act else put_back.n_trials % 4 == 0  # whole rounds
    with db.read() as tx:
        moves = events.after(tx, long_id, kinds=[events.Type.STATE])
    assert moves[-1].payload["yielded"]
    work(working)
    assert service_fakes.get(db, new_id).state is State.SUCCEEDED


def test_an_artifact_is_dropped_when_its_job_is_cancelled(
    db: database.Database,
    working: tuner.Tuner,
    engine: engine_process.EngineProcess,
    patient: limits.Limits,
) -> None:
    job_id = submit(db, "deaf export")
    with at_work(working):
        wait_until(lambda: (engine._child.folder / engine_fakes.BEGUN).exists())
        with db.write() as tx:
            control.cancel(tx, job_id)
    assert service_fakes.get(db, job_id).state is State.CANCELLED


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        ("deaf", "TimeLimit", "building the formulas of task 'gemm' took longer than 1 s"),
        ("long", "TimeLimit", "building the formulas of task 'gemm' took longer than 1 s"),
        ("deaf export", "TimeLimit", "making the artifact took longer than 2 s"),
        ("hoard", "MemoryLimit", "needs more than 400 MiB of memory"),
        ("workload error", "WorkloadError", "it cannot be scheduled"),
    ],
)
def test_a_job_beyond_its_limits_fails_and_says_why(
    db: database.Database, working: tuner.Tuner, act: str, error: str, message: str
) -> None:
    job_id = submit(db, act)
    work(working)
    after = service_fakes.get(db, job_id)
    assert (after.state, after.error) == (State.FAILED, error)
    assert after.message is not None and message in after.message
    assert after.n_trials == (8 if act == "deaf export" else 4)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("die", "EngineDied: the engine's process ended"),
        ("our error", "ValueError: a defect"),
        ("bad verb", "asked for 'write'"),
        ("hello again", "asked for 'hello'"),
        ("no message", "EngineDied"),
    ],
)
def test_a_broken_engine_is_the_machines_fault(
    db: database.Database, working: tuner.Tuner, act: str, message: str
) -> None:
    job_id, other_id = submit(db, act), submit(db)
    work(working)
    after = service_fakes.get(db, job_id)
    assert (after.state, after.error, after.n_trials) == (State.QUEUED, "infrastructure", 4)
    assert after.message is not None and message in after.message
    work(working)
    assert service_fakes.get(db, other_id).state is State.SUCCEEDED


def test_a_job_of_few_seconds_has_few_for_its_formulas(
    db: database.Database, working: tuner.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_STEP_S", 0.2)
    job_id = submit(db, "deaf", seconds=0.5)
    work(working)
    after = service_fakes.get(db, job_id)
    assert after.message is not None and "took longer than 0." in after.message


def test_a_lost_lease_ends_a_deaf_job(
    db: database.Database, working: tuner.Tuner, patient: limits.Limits
) -> None:
    job_id = submit(db, "deaf")
    with at_work(working):
        wait_for_trials(db, job_id, 4)
        with db.write() as tx:
            tx.get_one(jobs.models.Job, job_id).lease_token = "another tuner's"
    assert service_fakes.get(db, job_id).state is State.RUNNING


def test_a_stopped_job_has_an_artifact(db: database.Database, working: tuner.Tuner) -> None:
    job_id = submit(db, trials=1000)
    with at_work(working):
        wait_for_trials(db, job_id, 3)
        with db.write() as tx:
            control.stop(tx, job_id)
    after = service_fakes.get(db, job_id)
    assert (after.state, after.reason) == (State.SUCCEEDED, "stopped")
    with db.read() as tx:
        assert len(artifacts.of_job(tx, job_id)) == 1


def test_the_engine_knows_no_secret(
    db: database.Database, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("FELIX_DATABASE_URL", "FELIX_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD")
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    engine = engine_process.EngineProcess(limits.Limits.of(FAST), factory=engine_fakes.FACTORY)
    with contextlib.closing(tuner.Tuner(db, blobs.LocalStore(tmp_path), engine, FAST)) as working:
        job_id = submit(db)
        work(working)
    with db.read() as tx:
        (started,) = events.after(tx, job_id, kinds=[events.Type.STARTED])
    names = started.payload["model"].split(",")
    assert "FELIX_CACHE_DIR" in names and not set(secrets) & set(names)


def test_an_engine_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(zygote.EngineDied):
        engine_process.EngineProcess(limits.Limits.of(FAST), factory="tests.support:missing")


def test_a_killed_fork_server_is_replaced(db: database.Database, working: tuner.Tuner) -> None:
    engine = working._engine
    assert isinstance(engine, engine_process.EngineProcess)
    process = engine._zygote._process
    assert process is not None
    process.kill()
    process.wait()
    wait_until(lambda: not engine.is_ready())
    job_id = submit(db)
    work(working)
    assert service_fakes.get(db, job_id).state is State.SUCCEEDED


def test_what_an_engine_has_started_ends_with_it(
    db: database.Database,
    working: tuner.Tuner,
    engine: engine_process.EngineProcess,
    patient: limits.Limits,
) -> None:
    """Also what has left its group, and holds its pipe."""
    job_id = submit(db, "leave a process")
    with at_work(working):
        wait_for_trials(db, job_id, 4)
        with db.write() as tx:
            control.cancel(tx, job_id)
    assert service_fakes.get(db, job_id).state is State.CANCELLED
    next_id = submit(db)
    work(working)
    assert service_fakes.get(db, next_id).state is State.SUCCEEDED
    forks = engine._zygote._process
    assert forks is not None
    left = psutil.Process(forks.pid).children(recursive=True)
    assert [process.pid for process in left] == [engine._child.pid]


TUNER = """
import pathlib, sys
from server import settings
from server.database import database
from server.store import blobs
from server.tuner import tuner
from server.tuner.process import engine_process, limits
from tests.support import engine_fakes
chosen = settings.Settings(lease_s=1.0, beat_s=0.1, poll_s=0.02, reap_s=0.1)
engine = engine_process.EngineProcess(limits.Limits.of(chosen), factory=engine_fakes.FACTORY)
db = database.Database(sys.argv[1])
tuner.Tuner(db, blobs.LocalStore(pathlib.Path(sys.argv[2])), engine, chosen).run()
"""


@pytest.mark.parametrize("act", ["deaf", ""])
def test_no_process_outlives_a_killed_tuner(
    db: database.Database, url: str, tmp_path: pathlib.Path, act: str
) -> None:
    job_id = submit(db, act, trials=10_000)
    process = subprocess.Popen([sys.executable, "-c", TUNER, url, str(tmp_path / "blobs")])
    try:
        wait_for_trials(db, job_id, 4)
        engines = psutil.Process(process.pid).children(recursive=True)
        assert len(engines) == 2
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    gone, alive = psutil.wait_procs(engines, timeout=60)
    assert not alive and len(gone) == 2
    with db.write() as tx:
        assert leases.any_expired(tx) or service_fakes.get(db, job_id).state is State.RUNNING
