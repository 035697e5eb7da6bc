"""Measuring pools that a tuner keeps between jobs."""

from __future__ import annotations

import os
import signal

from felix import workloads
from felix.target import cpu
from server.tuner import warm_pools

TARGET = "llvm -num-cores 1"


def test_a_warm_pool_has_all_its_workers_and_serves_every_job_of_its_target() -> None:
    with warm_pools.Pools() as pools:
        pools.warm([TARGET])
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
        pools.warm([TARGET])
        task = workloads.gemm(8, 8, 8, target=TARGET)
        pool = pools.take(task)
        fork_server = pool._pool._fork_server
        assert fork_server.pid is not None and fork_server._process is not None
        os.kill(fork_server.pid, signal.SIGKILL)
        fork_server._process.wait()
        other = pools.take(task)
        assert other is not pool
        (measured,) = other.for_task(task).measure([task.mod])
        assert measured.ok, measured.message
