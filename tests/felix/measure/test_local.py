"""The local pool with real processes: crashes, hangs, kills, wrong results, orphans."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tvm

from felix import errors
from felix.measure import local, worker
from felix.runner import protocol
from felix.task import Task
from tests.support import in_place, waiting, warm
from tests.support import pool_programs as programs


def _await_end(*pids: int | None) -> None:
    """Until processes have ended; a zombie has."""
    waiting.until(lambda: all(worker._status(pid)[:1] in ([], ["Z"]) for pid in pids))


def test_a_function_that_is_not_there_is_named(pool: local.LocalPool) -> None:
    (bad,) = pool.measure([programs.module(programs.unknown_function)])
    assert bad.error is protocol.ErrorClass.LAUNCH and "no_such_function_anywhere" in bad.message


@pytest.mark.parametrize("name", in_place.PROGRAMS)
def test_each_candidate_finds_unchanged_what_it_changes_in_place(
    pool: local.LocalPool, name: str
) -> None:
    right = programs.module(in_place.program(name))
    wrong = programs.module(in_place.program("added" if name == "scaled" else "scaled"))
    task = Task.from_prim_func(right["main"], "llvm -num-cores 2")
    programs_of_it = [right, wrong, right.with_attr("felix.fresh", 1)]
    first, bad, second = pool.for_task(task).measure(programs_of_it)
    assert bad.error is protocol.ErrorClass.WRONG_RESULT
    for each in (first, second):
        assert each.ok and each.checked, each


def test_a_build_that_takes_too_long_is_cut(pool: local.LocalPool) -> None:
    endless, after = pool.measure([programs.unrolled(), programs.module(programs.gemm)])
    assert endless.error is protocol.ErrorClass.TIMEOUT and "building" in endless.message
    assert endless.build_s >= programs.OPTIONS.build_timeout_s
    assert after.ok


@pytest.mark.parametrize("victim", ["runner", "builder", "fork_server"])
def test_an_idle_process_killed_from_outside_is_replaced(
    pool: local.LocalPool, victim: str
) -> None:
    pool.measure([programs.module(programs.gemm)] * 4)
    pids = pool.worker_pids()
    victims = [name for name in pids if name.startswith(victim)]  # any builder may get the work
    for name in victims:
        pid = pids[name]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    dead = pids if victim == "fork_server" else victims  # its workers die with the fork server
    _await_end(*(pids[name] for name in dead if pids[name] is not None))
    fresh = [
        programs.module(programs.gemm.with_attr("felix.fresh", f"{victim} {n}")) for n in range(8)
    ]
    assert all(result.ok for result in pool.measure(fresh))  # not built before
    now = pool.worker_pids()
    assert any(now[name] != pids[name] for name in victims)


@pytest.mark.parametrize("victim", ["runner", "fork_server"])
def test_killed_while_running_is_infrastructure(pool: local.LocalPool, victim: str) -> None:
    assert pool.measure([programs.module(programs.gemm)])[0].ok
    pid = pool.worker_pids()[victim]
    assert pid is not None
    future = pool.submit(programs.module(programs.hang))
    waiting.until(lambda: pool._stages[0].runs.worker.is_called)  # it hangs for two seconds
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    result = future.result(timeout=20)
    assert result.error is protocol.ErrorClass.INFRASTRUCTURE and "SIGKILL" in result.message
    assert pool.measure([programs.module(programs.gemm)])[0].ok


def test_killed_while_building_is_infrastructure(pool: local.LocalPool) -> None:
    future = pool.submit(programs.unrolled())
    waiting.until(lambda: any(each.worker.is_called for each in pool._builders))
    (building,) = (each.worker for each in pool._builders if each.worker.is_called)
    waiting.until(lambda: building._cpu_s() > 0.1)
    assert building.pid is not None
    os.kill(building.pid, signal.SIGKILL)
    assert future.result(timeout=60).error is protocol.ErrorClass.INFRASTRUCTURE
    assert pool.measure([programs.module(programs.gemm)])[0].ok


def test_close_ends_every_process_and_pending_candidates(task: Task) -> None:
    pool = local.LocalPool(task, programs.OPTIONS)
    assert pool.measure([programs.module(programs.gemm)])[0].ok
    pids = [pid for pid in pool.worker_pids().values() if pid is not None]
    futures = [pool.submit(programs.module(programs.hang)) for _ in range(6)]
    time.sleep(0.5)
    pool.close()
    pool.close()
    _await_end(*pids)
    assert all(future.done() for future in futures)
    assert any(future.cancelled() for future in futures) or all(
        future.result().error is protocol.ErrorClass.INFRASTRUCTURE for future in futures
    )
    with pytest.raises(errors.MeasureError):
        pool.submit(programs.module(programs.gemm))


_PARENT = """
import time
from felix import without_torch
from felix.measure import local
from tests.support import pool_programs as t
from felix.task import Task
pool = local.LocalPool(Task.from_prim_func(t.gemm, "llvm -num-cores 2"), t.OPTIONS)
pool.measure([t.module(t.gemm)] * 4)
pool.submit(t.module(t.hang))
pool.submit(t.unrolled())
time.sleep(0.5)
pids = [pid for pid in pool.worker_pids().values() if pid]
print(pool._processes.fork_server.work_dir, *pids, flush=True)
time.sleep(60)
"""


def test_no_orphans_after_the_parent_is_killed() -> None:
    root = str(pathlib.Path(__file__).parents[4])
    parent = warm.Popen(
        [sys.executable, "-c", _PARENT],
        warm=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert parent.stdout is not None
    folder, *pids = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    assert len(pids) == 4
    _await_end(*map(int, pids))
    waiting.until(lambda: not pathlib.Path(folder).exists())


def test_a_failing_reference_is_infrastructure() -> None:
    broken = Task.from_prim_func(programs.gemm, "llvm")
    options = local.LocalOptions(builders=1, reference_timeout_s=0.0)
    with local.LocalPool(broken, options) as pool:
        result = pool.measure([programs.module(programs.gemm)])[0]
    assert result.error is protocol.ErrorClass.INFRASTRUCTURE and "reference" in result.message


@pytest.mark.fresh_processes
def test_a_pool_that_cannot_start_says_so(
    task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with local.LocalPool(task, local.LocalOptions(builders=1)) as pool:
        result = pool.measure([programs.module(programs.gemm)])[0]
    assert result.error is protocol.ErrorClass.INFRASTRUCTURE
    assert "out of order" in result.message


def test_cuda_without_a_device_is_refused() -> None:
    if tvm.runtime.device("cuda", 0).exist:
        pytest.skip("this machine has a CUDA device, so the refusal cannot be seen here")
    cuda = Task.from_prim_func(programs.gemm, "cuda")
    with pytest.raises(errors.MeasureError, match="no CUDA device"):
        local.LocalPool(cuda)


def test_the_fork_server_loads_the_graph_level_only_when_it_is_used() -> None:
    code = """
import sys
from felix.measure import fork_server_main
fork_server_main._import_tvm()
import tvm
parts = [name for name in sys.modules if name.startswith("tvm.relax")]
assert parts == ["tvm.relax"], parts
source = "@T.prim_func(s_tir=True)\\ndef main(x: T.Buffer((1,), 'float32')):\\n    x[0] = 1.0"
assert tvm.script.from_source(source).params
assert issubclass(tvm.relax.Function, tvm.ir.BaseFunc)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
