"""Measuring processes that start before there is anything to measure."""

from __future__ import annotations

import pathlib

import pytest

from felix import errors, workloads
from felix.network import workers
from felix.tuning import options
from tests.support import networks


def _is_alive(pid: int | None) -> bool:
    return pid is not None and pathlib.Path(f"/proc/{pid}").exists()


def test_they_become_those_of_the_pool() -> None:
    with workers.starting(options.TuneOptions()) as started:
        chosen = started.options
        assert chosen.pool is not None
        task = workloads.gemm(8, 8, 8, target=networks.TARGET)
        started.await_quiet(task.target)
        assert started.processes is not None and started.processes.fork_server.is_ready
        pool = chosen.open_pool(task)
        pid = pool.worker_pids()["fork_server"]
    assert _is_alive(pid)  # the run ends them
    pool.close()
    assert not _is_alive(pid)


def test_they_end_with_the_block_if_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    launch = workers.local_workers.LocalWorkers.launch

    def noted(made: workers.local_workers.LocalWorkers) -> None:
        launch(made)
        started.append(made.fork_server.pid)

    monkeypatch.setattr(workers.local_workers.LocalWorkers, "launch", noted)
    with workers.starting(options.TuneOptions()) as starting:
        chosen = starting.options
        assert _is_alive(started[0])
        with pytest.raises(errors.TargetError):  # no pool takes them
            chosen.open_pool(workloads.gemm(8, 8, 8, target="llvm -mcpu=apple-m1 -mtriple=arm64"))
    assert len(started) == 1 and not _is_alive(started[0])


def test_a_pool_of_the_callers_own_needs_none() -> None:
    given = networks.tune_options(networks.Pool())
    with workers.starting(given) as started:
        assert started.options is given and started.processes is None
