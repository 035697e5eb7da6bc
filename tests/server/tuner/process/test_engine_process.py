"""Jobs that would hold their tuner: unresponsive, endless, greedy, crashing; killed tuners."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from server import settings, states
from server.database import database
from server.store import artifacts, blobs, control, events, jobs, leases, progress, trials, tuners
from server.tuner import heartbeat, tuner
from server.tuner.process import engine_child, engine_process, limits
from tests.server.tuner.conftest import Bench
from tests.support import engine_fakes, service_fakes, share
from tests.support.waiting import until

#: The memory of an engine is limited, and a fork has loaded much.
pytestmark = pytest.mark.fresh_processes

State = states.State

FAST = settings.Settings(
    lease_s=20.0,
    beat_s=0.02,
    poll_s=0.02,
    reap_s=0.05,
    max_attempts=3,
    stop_s=0.5,
    task_open_s=600.0,
    step_s=600.0,
    engine_bytes=400 << 20,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[engine_process.EngineProcess]:
    """One for all tests: it is to survive what its jobs do."""
    made = engine_process.EngineProcess(FAST, factory=engine_fakes.FACTORY)
    yield made
    made.close()


@pytest.fixture
def at(
    db: database.Database,
    engine: engine_process.EngineProcess,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    store = blobs.LocalStore(tmp_path / "blobs")
    made = tuner.Tuner(db, store, engine, FAST)
    yield Bench(db, store, engine, made)
    monkeypatch.setattr(engine, "close", lambda: None)
    made.close()


def submit(db: database.Database, act: str = "", **changes: Any) -> int:
    return service_fakes.create(db, options={"act": act}, **{"trials": 8} | changes).id


def work(working: tuner.Tuner) -> None:
    """Work on one job; the engine may have to be made again first."""
    until(working.work_once)


def wait_for_trials(db: database.Database, job_id: int, n: int) -> None:
    until(lambda: service_fakes.get(db, job_id).n_trials >= n)


@contextlib.contextmanager
def at_work(working: tuner.Tuner) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work, args=(working,))
    thread.start()
    try:
        yield thread
    except BaseException:
        working.leaving.set()  # the engine is of the next test, too
        thread.join(300)
        raise
    thread.join(300)
    assert not thread.is_alive()


def test_a_job_goes_through(at: Bench) -> None:
    job_id = submit(at.db, trials=10)
    work(at.tuner)
    after = service_fakes.get(at.db, job_id)
    assert (after.state, after.reason, after.n_trials) == (State.SUCCEEDED, "trials", 10)
    assert after.target_key == "llvm/test"
    with at.db.read() as tx:
        assert progress.checkpoint(tx, job_id) == progress.Checkpoint(8, {"n": 8}, b"tensors")
        assert trials.records(tx, job_id) == [service_fakes.line(number) for number in range(10)]
        assert jobs.code(tx, job_id, 0) == ("def main(): ...", "; llvm", None)
        assert len(artifacts.of_job(tx, job_id)) == 1


def test_what_an_engine_says_of_its_devices_is_reported(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "REPORT_S", 0.0)

    def counts() -> set[tuple[str, str, int, int, int]]:
        at.tuner.work_once()  # an engine without a job is heard when the tuner looks for one
        found = service_fakes.read(at.db, tuners.reports_of, [at.tuner.worker_id])
        return {(r.place, r.target_key, r.queue, r.n_measured, r.n_failed) for r in found}

    until(lambda: ("cpu:0", "llvm/test", 1, 4, 2) in counts())
    (report,) = service_fakes.read(at.db, tuners.reports_of, [at.tuner.worker_id])
    assert report.host and report.versions == {"felix": "test"} and report.error_rate == 0.5


def test_an_unresponsive_job_is_cancelled_and_the_next_one_runs(at: Bench) -> None:
    job_id, other_id = submit(at.db, "unresponsive"), submit(at.db)
    with at_work(at.tuner):
        wait_for_trials(at.db, job_id, 4)
        engine_pid = at.engine._child.pid
        service_fakes.write(at.db, control.cancel, job_id)
    assert engine_pid is not None
    until(lambda: not psutil.pid_exists(engine_pid))
    after = service_fakes.get(at.db, job_id)
    assert (after.state, after.n_trials) == (State.CANCELLED, 4)
    work(at.tuner)
    assert service_fakes.get(at.db, other_id).state is State.SUCCEEDED


@pytest.mark.parametrize(("order", "state"), [(control.pause, State.PAUSED), (None, State.QUEUED)])
def test_an_unresponsive_job_is_put_down(
    at: Bench, order: Callable[..., object] | None, state: State
) -> None:
    job_id = submit(at.db, "unresponsive")
    with at_work(at.tuner):
        wait_for_trials(at.db, job_id, 4)
        with at.db.write() as tx:
            if order is not None:
                order(tx, job_id)
        if order is None:
            at.tuner.leaving.set()
    after = service_fakes.get(at.db, job_id)
    assert (after.state, after.n_trials, after.attempts) == (state, 4, 0)


def test_an_engine_that_holds_much_memory_is_replaced_after_its_artifact(at: Bench) -> None:
    job_id = submit(at.db, "keep")
    work(at.tuner)
    assert service_fakes.get(at.db, job_id).state is State.SUCCEEDED
    child = at.engine._child
    assert child.rss_bytes() > FAST.engine_bytes / 2
    until(at.engine.make_ready)
    assert at.engine._child is not child


def submit_as(db: database.Database, name: str, act: str = "", trials: int = 8) -> int:
    key = service_fakes.key(db, name, can_submit=True).key
    return submit(db, act, trials=trials, key_id=key.id)


@pytest.mark.parametrize(("act", "trials"), [("unresponsive", 8), ("", 400)])
def test_a_job_yields_to_a_new_one(
    at: Bench, monkeypatch: pytest.MonkeyPatch, act: str, trials: int
) -> None:
    monkeypatch.setattr(limits, "ROUND_S", 0.5)
    at.tuner._settings = FAST.model_copy(update={"slice_s": 0.2})
    long_id = submit_as(at.db, "long", act, trials)
    with at_work(at.tuner):
        wait_for_trials(at.db, long_id, 4)
        new_id = submit_as(at.db, "new")
    put_back = service_fakes.get(at.db, long_id)
    assert (put_back.state, put_back.error) == (State.QUEUED, None)
    assert put_back.n_trials == 4 if act else put_back.n_trials % 4 == 0  # whole rounds
    moves = service_fakes.read(at.db, events.after, long_id, kinds=[events.Type.STATE])
    assert moves[-1].payload["yielded"]
    work(at.tuner)
    assert service_fakes.get(at.db, new_id).state is State.SUCCEEDED


def test_an_artifact_is_dropped_when_its_job_is_cancelled(at: Bench) -> None:
    job_id = submit(at.db, "unresponsive export")
    with at_work(at.tuner):
        until(lambda: (at.engine._child.folder / engine_fakes.BEGUN).exists())
        service_fakes.write(at.db, control.cancel, job_id)
    assert service_fakes.get(at.db, job_id).state is State.CANCELLED


@pytest.mark.parametrize(
    ("act", "error", "message"),
    share.of(
        [
            (
                "unresponsive",
                "TimeLimit",
                "building the formulas of task 'gemm' took longer than 1 s",
            ),
            ("long", "TimeLimit", "building the formulas of task 'gemm' took longer than 1 s"),
            ("unresponsive export", "TimeLimit", "making the artifact took longer than 2 s"),
            ("hoard", "MemoryLimit", "needs more than 400 MiB of memory"),
            ("workload error", "WorkloadError", "it cannot be scheduled"),
        ],
        3,
    ),
)
def test_a_job_beyond_its_limits_fails_and_says_why(
    at: Bench, monkeypatch: pytest.MonkeyPatch, act: str, error: str, message: str
) -> None:
    strict = at.engine._limits.model_copy(update={"task_open_s": 1.0, "step_s": 2.0})
    monkeypatch.setattr(at.engine, "_limits", strict)
    job_id = submit(at.db, act)
    work(at.tuner)
    after = service_fakes.get(at.db, job_id)
    assert (after.state, after.error) == (State.FAILED, error)
    assert after.message is not None and message in after.message
    assert after.n_trials == (8 if act == "unresponsive export" else 4)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("die", "EngineDied: the engine's process ended"),
        ("our error", "ValueError: a defect"),
        ("bad verb", "asked for 'write'"),
        ("no message", "EngineDied"),
    ],
)
def test_a_broken_engine_is_the_machines_fault(at: Bench, act: str, message: str) -> None:
    job_id, other_id = submit(at.db, act), submit(at.db)
    work(at.tuner)
    after = service_fakes.get(at.db, job_id)
    assert (after.state, after.error, after.n_trials) == (State.QUEUED, "infrastructure", 4)
    assert after.message is not None and message in after.message
    work(at.tuner)
    assert service_fakes.get(at.db, other_id).state is State.SUCCEEDED


def test_a_job_of_few_seconds_has_few_for_its_formulas(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_STEP_S", 0.2)
    job_id = submit(at.db, "unresponsive", seconds=0.5)
    work(at.tuner)
    after = service_fakes.get(at.db, job_id)
    assert after.message is not None and "took longer than 0." in after.message


def test_a_lost_lease_ends_an_unresponsive_job(at: Bench) -> None:
    job_id = submit(at.db, "unresponsive")
    with at_work(at.tuner):
        wait_for_trials(at.db, job_id, 4)
        with at.db.write() as tx:
            tx.get_one(jobs.models.Job, job_id).lease_token = "another tuner's"
    assert service_fakes.get(at.db, job_id).state is State.RUNNING


def test_the_engine_knows_no_secret(
    db: database.Database, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("FELIX_DATABASE_URL", "FELIX_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD")
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    engine = engine_process.EngineProcess(FAST, factory=engine_fakes.FACTORY)
    with contextlib.closing(tuner.Tuner(db, blobs.LocalStore(tmp_path), engine, FAST)) as working:
        job_id = submit(db)
        work(working)
    (started,) = service_fakes.read(db, events.after, job_id, kinds=[events.Type.STARTED])
    names = started.payload["model"].split(",")
    assert "FELIX_CACHE_DIR" in names and not set(secrets) & set(names)


def test_an_engine_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(engine_child.EngineDied):
        engine_process.EngineProcess(FAST, factory="tests.support:missing")


def test_a_killed_fork_server_is_replaced(at: Bench) -> None:
    process = at.engine._server._process
    assert process is not None
    process.kill()
    process.wait()
    until(lambda: not at.engine.make_ready())
    job_id = submit(at.db)
    work(at.tuner)
    assert service_fakes.get(at.db, job_id).state is State.SUCCEEDED


def test_what_an_engine_has_started_ends_with_it(at: Bench) -> None:
    """Also what has left its group, and holds its pipe."""
    job_id = submit(at.db, "leave a process")
    with at_work(at.tuner):
        wait_for_trials(at.db, job_id, 4)
        service_fakes.write(at.db, control.cancel, job_id)
    assert service_fakes.get(at.db, job_id).state is State.CANCELLED
    next_id = submit(at.db)
    work(at.tuner)
    assert service_fakes.get(at.db, next_id).state is State.SUCCEEDED
    forks = at.engine._server._process
    assert forks is not None
    left = psutil.Process(forks.pid).children(recursive=True)
    assert [process.pid for process in left] == [at.engine._child.pid]


TUNER = """
import pathlib, sys
from server import settings
from server.database import database
from server.store import blobs
from server.tuner import tuner
from server.tuner.process import engine_process
from tests.support import engine_fakes
chosen = settings.Settings(lease_s=1.0, beat_s=0.1, poll_s=0.02, reap_s=0.1)
engine = engine_process.EngineProcess(chosen, factory=engine_fakes.FACTORY)
db = database.Database(sys.argv[1])
tuner.Tuner(db, blobs.LocalStore(pathlib.Path(sys.argv[2])), engine, chosen).run()
"""


@pytest.mark.parametrize("act", share.of(["unresponsive", ""], 1))
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
    gone, alive = psutil.wait_procs(engines, timeout=300)
    assert not alive and len(gone) == 2
    with db.write() as tx:
        assert leases.any_expired(tx) or service_fakes.get(db, job_id).state is State.RUNNING
