"""Jobs whose formulas take minutes, on the real engine: cancelled, limited, and others go on."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable

import pytest
from tvm import te

from felix import workloads
from felix.task import Task
from server import settings, states
from server.database import database
from server.store import blobs, control, events, jobs
from server.tuner import tuner
from server.tuner.process import engine_process, limits
from tests.support import service_fakes

CHOSEN = settings.Settings(beat_s=0.1, poll_s=0.05, stop_s=0.5, task_open_s=8.0)


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


def submit(db: database.Database, task: Task, trials: int = 4) -> int:
    new = jobs.NewTask(
        name=task.name,
        weight=1.0,
        flops=float(task.flops),
        min_bytes=float(task.min_bytes),
        program=task.to_json(),
    )
    return service_fakes.create(db, tasks=(new,), trials=trials, strategy="local").id


def wait(condition: Callable[[], bool], limit_s: float = 120.0) -> float:
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < limit_s
        time.sleep(0.02)
    return time.monotonic() - began_s


@pytest.mark.timeout(300)
def test_chained_reductions_do_not_hold_a_tuner(
    db: database.Database, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    cancelled, beyond = submit(db, chain(32)), submit(db, chain(64))
    normal = submit(db, workloads.gemm(16, 16, 16, target="llvm"))
    engine = engine_process.EngineProcess(limits.Limits.of(CHOSEN))
    working = tuner.Tuner(db, blobs.LocalStore(tmp_path / "blobs"), engine, CHOSEN)

    def has_begun(job_id: int) -> bool:
        with db.read() as tx:
            return bool(events.after(tx, job_id, kinds=[events.Type.STARTED]))

    def has_ended(job_id: int) -> bool:
        return service_fakes.get(db, job_id).state in states.ENDED

    with contextlib.closing(working):
        thread = threading.Thread(target=working.run)
        thread.start()
        try:
            wait(lambda: has_begun(cancelled))
            time.sleep(0.5)
            with db.write() as tx:
                control.cancel(tx, cancelled)
            assert wait(lambda: has_ended(cancelled)) < 5.0
            wait(lambda: has_ended(beyond))
            wait(lambda: has_ended(normal))
        finally:
            working.leaving.set()
            thread.join()
    assert service_fakes.get(db, cancelled).state is states.State.CANCELLED
    failed = service_fakes.get(db, beyond)
    assert (failed.state, failed.error) == (states.State.FAILED, "TimeLimit")
    expected = "building the formulas of task 'chain of 64' took longer than 8 s"
    assert failed.message is not None and failed.message.startswith(expected)
    assert service_fakes.get(db, normal).state is states.State.SUCCEEDED
