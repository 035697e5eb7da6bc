"""Measuring pools that a tuner keeps between jobs."""

from __future__ import annotations

import concurrent.futures
import os
import signal

import tvm
from tvm.script import tirx as T

from felix import workloads
from felix.measure import protocol
from felix.target import cpu
from server.tuner import warm_pools
from tests.support import tir_programs
from tests.support.waiting import until

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
    with warm_pools.Pools() as pools:
        pools.warm(TARGET)
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        fork_server_pid = pool._pool.worker_pids()["fork_server"]
        measurer = pool.for_task(task)
        left = [measurer.submit(tvm.IRModule({"main": endless})) for _ in range(3)]
        until(lambda: any(future.running() for future in left))
        pool.close()
        ended = [future.result() for future in left if not future.cancelled()]
        assert all(future.done() for future in left)  # killed, not at the end of their time
        assert not any(each.error is protocol.ErrorClass.TIMEOUT for each in ended)
        again = pools.take(task)
        assert again is pool and pool._pool.worker_pids()["fork_server"] == fork_server_pid
        (measured,) = again.for_task(task).measure([task.mod])
        assert measured.ok, measured.message


def test_a_warm_pool_has_all_its_workers_and_serves_every_job_of_its_target() -> None:
    with warm_pools.Pools() as pools:
        pools.warm(TARGET)
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        pids = pool._pool.worker_pids()
        assert len(pids) == cpu.available_cores() + 2 and None not in pids.values()
        (measured,) = pool.for_task(task).measure([task.mod])
        assert measured.ok, measured.message
        pool.close()  # a job ends, its pool does not
        assert pools.take(workloads.gemm(8, 8, 16, target=TARGET)) is pool
        assert pool._pool.worker_pids() == pids


def test_a_pool_whose_fork_server_died_is_replaced() -> None:
    with warm_pools.Pools() as pools:
        pools.warm(TARGET)
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        fork_server = pool._pool._processes.fork_server
        assert fork_server.pid is not None and fork_server._process is not None
        os.kill(fork_server.pid, signal.SIGKILL)
        fork_server._process.wait()
        other = pools.take(task)
        assert other is not pool
        (measured,) = other.for_task(task).measure([task.mod])
        assert measured.ok, measured.message
