"""Builds and timing of the local pool: linking, limits of builders, who waits for whom."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import te

from felix.builder import build
from felix.measure import fork_server_main, local, worker
from felix.runner import protocol, timing
from felix.task import Task
from tests.support import pool_programs as programs


def test_a_builder_over_its_memory_is_a_build_error(task: Task) -> None:
    options = local.LocalOptions(builders=1, build_memory_bytes=64 << 20)
    with local.LocalPool(task, options) as pool:
        result = pool.measure([programs.module(programs.gemm)])[0]
    assert result.error is protocol.ErrorClass.BUILD


@pytest.mark.parametrize("link", [build.Link.LD, build.Link.CC])
def test_libraries_bind_to_the_current_functions_of_libm(
    tmp_path: pathlib.Path, link: build.Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unversioned, glibc would bind `log` to its oldest one, which is slower."""
    if platform.libc_ver()[0] != "glibc" or shutil.which("readelf") is None:
        pytest.skip("needs glibc and readelf")
    monkeypatch.setattr(build, "available_link", lambda: link)
    x = te.placeholder((64,), "float64", "x")
    y = te.compute((64,), lambda i: te.log(x[i]))
    module = tvm.IRModule({"main": te.create_prim_func([x, y])})
    path = build.build(module, tvm.target.Target("llvm"), str(tmp_path / "log"))
    command = ["readelf", "--wide", "--dyn-syms", path]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (log,) = re.findall(r"\blog(?![a-z])\S*", symbols)
    assert log.startswith("log@GLIBC_")


@pytest.mark.parametrize("link", build.Link)
def test_every_way_to_link_gives_a_kernel(
    tmp_path: pathlib.Path, link: build.Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build.available_link() is build.Link.JIT is not link:
        pytest.skip("no linker here: nothing but the JIT can be tested")
    monkeypatch.setattr(build, "available_link", lambda: link)
    llvm = tvm.target.Target("llvm")
    path = build.build(programs.parallel(), llvm, str(tmp_path / "kernel"))
    a, b, c = (np.ones((programs.N, programs.N), "float32") for _ in range(3))
    tensors = [tvm.runtime.tensor(array) for array in (a, b, c)]
    tvm.runtime.load_module(path)["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), a @ b)


def test_no_tools_are_needed(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert build.available_link() is build.Link.JIT
    with local.LocalPool(task, local.LocalOptions(builders=1)) as pool:
        assert pool.measure([programs.parallel()])[0].ok


def test_builders_stand_still_while_timing(task: Task) -> None:
    options = local.LocalOptions(
        builders=1,
        build_timeout_s=20,
        timing=timing.TimingOptions(min_total_s=0.3, max_repeats=100_000, max_total_s=0.5),
    )
    with local.LocalPool(task, options) as pool:
        assert pool.measure([programs.module(programs.gemm)])[0].ok
        pid = pool.worker_pids()["builder-0"]
        measured = pool.submit(programs.module(programs.gemm))
        busy = pool.submit(programs.unrolled())
        stopped = _states(pid, until=measured.done)
        assert measured.result().ok
        assert "T" in stopped
        assert not busy.done()


def test_timing_waits_for_who_computes_and_is_not_charged_for_it(task: Task) -> None:
    options = local.LocalOptions(builders=1, run_timeout_s=3.0)
    with local.LocalPool(task, options) as pool:
        assert pool.measure([programs.module(programs.gemm)])[0].ok
        with pool.timing_lock.shared():
            future = pool.submit(programs.module(programs.gemm))
            time.sleep(3.5)
            assert not future.done()
        assert future.result(timeout=10).ok


def _states(pid: int | None, until: Callable[[], bool]) -> set[str]:
    """States of a process, letters as in /proc, until something holds."""
    states = set()
    while not until():
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        states.add(stat.rsplit(")", 1)[1].split()[0])
        time.sleep(0.005)
    return states


def test_a_build_that_waits_for_a_core_is_not_cut(task: Task) -> None:
    options = local.LocalOptions(builders=1, build_timeout_s=1.0)
    with local.LocalPool(task, options) as pool:
        assert pool.submit(programs.module(programs.gemm)).result(timeout=60).ok
        builder = pool.worker_pids()["builder-0"]
        assert builder is not None
        future = pool.submit(programs.unrolled())
        time.sleep(0.3)
        os.kill(builder, signal.SIGSTOP)
        time.sleep(2.0)
        assert not future.done(), "time in which it stands still does not count"
        os.kill(builder, signal.SIGCONT)
        assert future.result(timeout=60).error is protocol.ErrorClass.TIMEOUT


def test_cores_are_idle_soon_after_a_candidate_was_timed(pool: local.LocalPool) -> None:
    """TVM's threads would look for more work for 0.17 s, and keep builds from the cores."""
    (measured,) = pool.measure([programs.parallel()])
    pid = pool.worker_pids()["runner"]
    before_s = worker.cpu_seconds(pid)
    time.sleep(0.4)
    assert measured.ok and worker.cpu_seconds(pid) - before_s < 0.06


def test_a_fast_candidate_is_not_built_again_and_a_thorough_one_is_timed_longer(
    task: Task,
) -> None:
    options = local.LocalOptions(
        builders=1,
        # an error that no spread reaches: a noisy first measurement asks for no more repeats
        timing=timing.TimingOptions(
            min_total_s=0.0, leader_ratio=0.0, leader_error=1e3, max_total_s=5
        ),
    )
    with local.LocalPool(task, options) as pool:
        first = pool.submit(programs.module(programs.gemm)).result(timeout=30)
        again = pool.submit(programs.module(programs.gemm)).result(timeout=30)
        thorough = pool.submit(programs.module(programs.gemm), thorough=True).result(timeout=30)
    assert first.ok and first.build_s > 0
    assert again.ok and again.build_s == 0
    assert len(first.latencies_us) == len(again.latencies_us) == 5
    assert thorough.checked and len(thorough.latencies_us) >= 10


@pytest.mark.parametrize(
    ("cores", "bound"),
    [({0, 1}, True), ({0}, True), ({1}, False), ({2, 3}, False), ({0, 2}, False)],
)
def test_tvm_may_pin_threads_only_to_cores_counted_from_zero(cores: set[int], bound: bool) -> None:
    assert fork_server_main.may_bind(cores) is bound
