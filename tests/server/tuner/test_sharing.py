"""Tuners that share a queue: leases, devices, turns of keys; pools kept between jobs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import signal
import threading
import time
from typing import Any
from unittest import mock

import pytest
import tvm
from sqlalchemy import orm
from tvm.script import tirx as T

from felix import errors as engine_errors
from felix import workloads
from felix.measure import local
from felix.runner import protocol
from felix.target import cpu
from server import states
from server.database import database
from server.store import blobs, events, job_lists, jobs, leases
from server.store import tuners as store_tuners
from server.store import turns as store_turns
from server.tuner import heartbeat, tuner, warm_pools
from tests.server.conftest import on_both_databases
from tests.server.tuner.conftest import FAST, Bench
from tests.support import service_fakes, tir_programs
from tests.support.waiting import until

State = states.State


@on_both_databases
def test_several_tuners_share_the_queue(db: database.Database, store: blobs.LocalStore) -> None:
    for _ in range(6):
        service_fakes.create(db, trials=4)
    engines = [service_fakes.Engine(pause_s=0.005) for _ in range(3)]
    tuners = [tuner.Tuner(db, store, engine, FAST) for engine in engines]
    threads = [threading.Thread(target=each.run) for each in tuners]
    for thread in threads:
        thread.start()

    def n_succeeded() -> int:
        return service_fakes.read(db, job_lists.counts)[State.SUCCEEDED]

    until(lambda: n_succeeded() == 6)
    for each in tuners:
        each.leaving.set()
    for thread in threads:
        thread.join()
    for each in tuners:
        each.close()
    measured = [pair for engine in engines for pair in engine.measured]
    assert len(measured) == len(set(measured)) == 24
    assert all(not w.is_alive for w in service_fakes.read(db, store_tuners.every, 60))


@on_both_databases
def test_the_last_beat_of_a_lease_is_over_when_its_job_is(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL it may hold the job's row, and the next claim would pass that over."""
    service_fakes.create(at.db)
    beat = leases.beat
    begun, ends, over = threading.Event(), threading.Event(), threading.Event()

    def slow(tx: orm.Session, fence: leases.Fence, lease_s: float) -> states.Instruction:
        instruction = beat(tx, fence, lease_s)
        begun.set()
        assert ends.wait(120)
        time.sleep(0.2)
        over.set()
        return instruction

    claim = service_fakes.write(at.db, leases.claim, at.tuner.worker_id, ["llvm"], 20.0)
    assert claim is not None
    monkeypatch.setattr(leases, "beat", slow)
    beating = heartbeat.Heartbeat(
        at.db, at.tuner.worker_id, 0.02, 20.0, devices=list, reports=list
    )
    with beating.monitor(claim.fence, service_fakes.ALONE):
        assert begun.wait(120)
        ends.set()
    assert over.is_set()
    beating.close()


def test_a_job_waits_for_a_device_and_says_so(at: Bench) -> None:
    device = at.engine.device
    job = service_fakes.create(at.db, trials=4)

    def waits_for() -> str | None:
        with at.db.read() as tx:
            return store_tuners.missing(store_tuners.every(tx, 60), job.target_key)

    assert waits_for() is None
    at.engine.device = None
    assert not at.tuner.work_once()
    until(lambda: waits_for() == f"a device of {job.target_key}: the tuners have no device")
    assert device is not None
    at.engine.device = device | {"fault": "too hot"}
    assert not at.tuner.work_once()
    until(lambda: waits_for() == f"a device of {job.target_key}: test cpu: too hot")
    at.engine.device = device
    until(lambda: waits_for() is None)
    assert at.tuner.work_once()
    assert service_fakes.get(at.db, job.id).state is State.SUCCEEDED


def test_a_job_whose_device_goes_is_put_back_without_losing_an_attempt(at: Bench) -> None:
    job = service_fakes.create(at.db, trials=4)
    at.engine.error = engine_errors.NoDevice("the node does not answer")
    after = at.worked(job.id)
    assert (after.state, after.attempts, after.n_trials) == (State.QUEUED, 0, 1)
    last = service_fakes.read(at.db, events.after, job.id, 0)[-1]
    assert last.payload["message"] == "the node does not answer"
    at.engine.error = None
    after = at.worked(job.id)
    assert (after.state, after.n_trials) == (State.SUCCEEDED, 4)


def test_a_watch_gives_up_before_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = mock.Mock()
    clock.monotonic.return_value = 0.0
    monkeypatch.setattr(heartbeat, "time", clock)
    monitor = heartbeat.LeaseMonitor(leases.Fence(1, "t"), 10.0, service_fakes.ALONE)
    assert monitor.instruction is states.Instruction.CONTINUE
    clock.monotonic.return_value = 5.0
    monitor.renewed(states.Instruction.PAUSE, 5.0)
    assert monitor.instruction is states.Instruction.PAUSE
    clock.monotonic.return_value = 14.5
    assert monitor.instruction is states.Instruction.LEASE_LOST


def submit_as(db: database.Database, name: str, **changes: Any) -> int:
    """Queue a job of a new key."""
    key = service_fakes.key(db, name, can_submit=True).key
    return service_fakes.create(db, key_id=key.id, **changes).id


def test_two_keys_share_a_tuner_and_nothing_is_lost(
    db: database.Database, engine: service_fakes.Engine, store: blobs.LocalStore
) -> None:
    engine.pause_s = 0.01
    first, second = (submit_as(db, name, trials=60) for name in ("first", "second"))
    sharing = FAST.model_copy(update={"slice_s": 0.2})
    with contextlib.closing(tuner.Tuner(db, store, engine, sharing)) as working:
        for _ in range(50):
            working.work_once()
            if service_fakes.get(db, second).state is State.SUCCEEDED:
                break
    turns = [job_id for job_id, _ in itertools.groupby(job_id for job_id, _ in engine.measured)]
    assert turns[:4] == [first, second, first, second]
    assert len(engine.measured) == len(set(engine.measured))
    with db.read() as tx:
        for job_id in (first, second):
            job, log = jobs.get(tx, job_id), events.after(tx, job_id)
            yielded = [event for event in log if event.payload.get("yielded")]
            assert job.attempts <= 1 and job.error is None
            assert yielded and "waited for its turn" in yielded[0].payload["message"]
            assert (yielded[0].from_state, yielded[0].to_state) == ("running", "queued")
        assert all(seconds > 0.5 for seconds in store_turns.usage_by_key(tx).values())


def test_a_slice_doubles_with_each_turn_that_gave_nothing(at: Bench) -> None:
    job = service_fakes.create(at.db)
    slices = []
    for _ in range(3):
        claim = service_fakes.claim(at.db)
        slices.append(at.tuner._sharing(claim.job).slice_s)
        service_fakes.write(at.db, leases.release, claim.fence, is_attempt=True)
    assert slices == [FAST.slice_s, 2 * FAST.slice_s, 4 * FAST.slice_s]
    fence = service_fakes.claim(at.db).fence
    service_fakes.add(at.db, fence, service_fakes.new_trial(0))
    assert service_fakes.get(at.db, job.id).attempts == 1


def test_no_job_is_claimed_for_an_engine_that_is_not_ready(
    at: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service_fakes.create(at.db)
    monkeypatch.setattr(at.engine, "make_ready", lambda: False)
    assert not at.tuner.work_once()
    assert service_fakes.get(at.db, job.id).state is State.QUEUED


# ------------------------------------------------- measuring pools that a tuner keeps between jobs


TARGET = "llvm -num-cores 1"


@tir_programs.prim_func(s_tir=True)
def endless(
    a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32"), c: T.Buffer((8, 8), "float32")
):
    for i, j, k in T.grid(8, 8, 1 << 30):
        with T.sblock("c"):
            vi, vj = T.axis.spatial(8, i), T.axis.spatial(8, j)
            vk = T.axis.reduce(1 << 30, k)
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] * T.float32(0.5) + a[vi, vk % 8] * b[vi, vj]


class WaitingPool:
    """A `LocalPool` whose candidates wait for ever."""

    is_idle = False

    def __init__(self) -> None:
        self.futures: list[concurrent.futures.Future[protocol.Measurement]] = []

    def for_task(self, task: object) -> WaitingPool:
        return self

    def submit(
        self, mod: object, thorough: bool = False
    ) -> concurrent.futures.Future[protocol.Measurement]:
        self.futures.append(concurrent.futures.Future())
        return self.futures[-1]

    def interrupt(self) -> None:
        """As what runs ends."""
        failed = protocol.Measurement(error=protocol.ErrorClass.INFRASTRUCTURE, message="killed")
        for future in self.futures:
            if future.running():
                future.set_result(failed)


def test_a_cancelled_job_leaves_no_candidate_and_hides_no_error() -> None:
    """Each cancelled candidate takes itself out of the pool's set."""
    waiting = WaitingPool()
    pool = warm_pools.SharedPool(waiting)  # type: ignore[arg-type]
    measurer = pool.for_task(workloads.gemm(8, 8, 8, target=TARGET))
    mod = tvm.IRModule()
    for _ in range(24):
        measurer.submit(mod)
    assert waiting.futures[0].set_running_or_notify_cancel()
    pool.close()
    assert all(future.done() for future in waiting.futures)
    assert not pool._had_trouble  # that the job was ended says nothing of the workers


def test_endless_candidates_of_a_job_that_is_over_hold_nobody_up() -> None:
    with contextlib.closing(warm_pools.Pools(local.LocalPool)) as pools:
        pools.warm(TARGET)
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        fork_server_pid = pool.staged.worker_pids()["fork_server"]
        measurer = pool.for_task(task)
        left = [measurer.submit(tvm.IRModule({"main": endless})) for _ in range(3)]
        until(lambda: any(future.running() for future in left))
        pool.close()
        ended = [future.result() for future in left if not future.cancelled()]
        assert all(future.done() for future in left)  # killed, not at the end of their time
        assert not any(each.error is protocol.ErrorClass.TIMEOUT for each in ended)
        again = pools.take(task)
        assert again is pool and pool.staged.worker_pids()["fork_server"] == fork_server_pid
        (measured,) = again.for_task(task).measure([task.mod])
        assert measured.ok, measured.message


def test_a_warm_pool_has_all_its_workers_and_serves_every_job_of_its_target() -> None:
    with contextlib.closing(warm_pools.Pools(local.LocalPool)) as pools:
        pools.warm(TARGET)
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        pids = pool.staged.worker_pids()
        assert len(pids) == cpu.available_cores() + 2 and None not in pids.values()
        (measured,) = pool.for_task(task).measure([task.mod])
        assert measured.ok, measured.message
        pool.close()  # a job ends, its pool does not
        assert pools.take(workloads.gemm(8, 8, 16, target=TARGET)) is pool
        assert pool.staged.worker_pids() == pids


def test_a_pool_whose_fork_server_died_is_replaced() -> None:
    with contextlib.closing(warm_pools.Pools(local.LocalPool)) as pools:
        pools.warm(TARGET)
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        fork_server = pool.staged._processes.fork_server
        assert fork_server.pid is not None and fork_server._process is not None
        os.kill(fork_server.pid, signal.SIGKILL)
        fork_server._process.wait()
        other = pools.take(task)
        assert other is not pool
        (measured,) = other.for_task(task).measure([task.mod])
        assert measured.ok, measured.message
