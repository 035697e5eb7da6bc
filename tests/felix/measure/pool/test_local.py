"""The local pool with real processes: crashes, hangs, kills, wrong results, orphans."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import tvm
from tvm import te
from tvm.script import tirx as T

from felix import errors
from felix.measure import build, protocol, timing
from felix.measure.pool import fork_server_main, local, worker
from felix.task import Task
from tests.support import tir_programs

N = 64
OPTIONS = local.LocalOptions(
    builders=2,
    build_timeout_s=3.0,
    run_timeout_s=2.0,
    timing=timing.TimingOptions(max_total_s=0.05),
)


@tir_programs.prim_func(s_tir=True)
def gemm(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    T.func_attr({"tirx.noalias": True})
    for i, j, k in T.grid(N, N, N):
        with T.sblock("c"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]


@tir_programs.prim_func(s_tir=True)
def other_sum(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    for i, j, k in T.grid(N, N, N):
        with T.sblock("c"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vj, vk]


@tir_programs.prim_func(s_tir=True)
def unwritten_row(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    for i, j, k in T.grid(N - 1, N, N):
        with T.sblock("c"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]


@tir_programs.prim_func(s_tir=True)
def null_pointer(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    for _i in T.serial(1):
        with T.sblock("c"):
            T.reads()
            T.writes(c[0, 0])
            T.evaluate(T.call_extern("int32", "puts", T.reinterpret("handle", T.int64(0))))
            c[0, 0] = a[0, 0] + b[0, 0]


@tir_programs.prim_func(s_tir=True)
def abort(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    for _i in T.serial(1):
        with T.sblock("c"):
            T.reads()
            T.writes(c[0, 0])
            T.evaluate(T.call_extern("int32", "abort"))
            c[0, 0] = a[0, 0] + b[0, 0]


@tir_programs.prim_func(s_tir=True)
def hang(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    for _i in T.serial(1):
        with T.sblock("c"):
            T.reads()
            T.writes(c[0, 0])
            c[0, 0] = T.float32(1)
            while c[0, 0] > T.float32(0):
                c[0, 0] = c[0, 0] + a[0, 0] * a[0, 0] + b[0, 0] * b[0, 0]


@tir_programs.prim_func(s_tir=True)
def unknown_function(
    a: T.Buffer((N, N), "float32"),
    b: T.Buffer((N, N), "float32"),
    c: T.Buffer((N, N), "float32"),
):
    for _i in T.serial(1):
        with T.sblock("c"):
            T.reads()
            T.writes(c[0, 0])
            T.evaluate(T.call_extern("int32", "no_such_function_anywhere"))
            c[0, 0] = a[0, 0] + b[0, 0]


def _mod(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _unrolled() -> tvm.IRModule:
    """A quarter of a million multiply-adds in a row: LLVM needs minutes."""
    mod = _mod(gemm)  # a name of its own: TVM schedules a temporary module in place, `gemm` too
    sch = tvm.s_tir.Schedule(mod)
    for loop in sch.get_loops(sch.get_sblock("c")):
        sch.unroll(loop)
    return sch.mod


def _parallel() -> tvm.IRModule:
    mod = _mod(gemm)
    sch = tvm.s_tir.Schedule(mod)
    sch.parallel(sch.get_loops(sch.get_sblock("c"))[0])
    return sch.mod


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.from_prim_func(gemm, "llvm -num-cores 2", name="gemm")


@pytest.fixture(scope="module")
def pool(task: Task) -> Iterator[local.LocalPool]:
    with local.LocalPool(task, OPTIONS) as opened:
        yield opened


def _gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends (a zombie has ended) within a time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_good_candidates_have_latency_and_are_checked(pool: local.LocalPool) -> None:
    results = pool.measure([_mod(gemm), _parallel()])
    for result in results:
        assert result.ok and result.checked and result.error is None
        assert result.latency_us is not None and 0 < result.latency_us < 1e5
        assert result.build_s > 0 and result.run_s > 0
        assert result.device
    longest = max(results, key=lambda result: len(result.latencies_us))  # one may be early-stopped
    assert len(longest.latencies_us) >= 3 and longest.spread is not None


@pytest.mark.parametrize(
    ("func", "kind", "message"),
    [
        (null_pointer, protocol.ErrorClass.LAUNCH, "SIGSEGV"),
        (abort, protocol.ErrorClass.LAUNCH, "SIGABRT"),
        (unknown_function, protocol.ErrorClass.LAUNCH, "no_such_function_anywhere"),
        (hang, protocol.ErrorClass.TIMEOUT, "running"),
        (other_sum, protocol.ErrorClass.WRONG_RESULT, "output c"),
        (unwritten_row, protocol.ErrorClass.WRONG_RESULT, "64 of 4096 elements"),
    ],
)
def test_a_bad_candidate_costs_only_itself(
    pool: local.LocalPool,
    func: tvm.tirx.PrimFunc,
    kind: protocol.ErrorClass,
    message: str,
) -> None:
    before, bad, after = pool.measure([_mod(gemm), _mod(func), _parallel()])
    assert bad.error is kind, bad
    assert message in bad.message
    assert bad.latency_us is None and bad.build_s > 0
    assert before.ok and after.ok


def test_a_build_that_takes_too_long_is_cut(pool: local.LocalPool) -> None:
    endless, after = pool.measure([_unrolled(), _mod(gemm)])
    assert endless.error is protocol.ErrorClass.TIMEOUT and "building" in endless.message
    assert endless.build_s >= OPTIONS.build_timeout_s
    assert after.ok


@pytest.mark.parametrize("victim", ["runner", "builder", "fork_server"])
def test_an_idle_process_killed_from_outside_is_replaced(
    pool: local.LocalPool, victim: str
) -> None:
    pool.measure([_mod(gemm)] * 4)
    pids = pool.worker_pids()
    victims = [name for name in pids if name.startswith(victim)]  # any builder may get the work
    for name in victims:
        pid = pids[name]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    dead = pids if victim == "fork_server" else victims  # its workers die with the fork server
    assert all(_gone(number) for name in dead if (number := pids[name]) is not None)
    fresh = [_mod(gemm.with_attr("felix.fresh", f"{victim} {n}")) for n in range(8)]
    assert all(result.ok for result in pool.measure(fresh))  # not built before
    now = pool.worker_pids()
    assert any(now[name] != pids[name] for name in victims)


@pytest.mark.parametrize("victim", ["runner", "fork_server"])
def test_killed_while_running_is_infrastructure(pool: local.LocalPool, victim: str) -> None:
    assert pool.measure([_mod(gemm)])[0].ok
    pid = pool.worker_pids()[victim]
    assert pid is not None
    future = pool.submit(_mod(hang))
    time.sleep(1.0)  # it builds in well under that, and hangs for two seconds
    os.kill(pid, signal.SIGKILL)
    result = future.result(timeout=20)
    assert result.error is protocol.ErrorClass.INFRASTRUCTURE and "SIGKILL" in result.message
    assert pool.measure([_mod(gemm)])[0].ok


def test_killed_while_building_is_infrastructure(task: Task) -> None:
    options = local.LocalOptions(builders=1, build_timeout_s=30)
    with local.LocalPool(task, options) as pool:
        assert pool.measure([_mod(gemm)])[0].ok
        future = pool.submit(_unrolled())
        time.sleep(0.5)
        pid = pool.worker_pids()["builder-0"]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert future.result(timeout=20).error is protocol.ErrorClass.INFRASTRUCTURE
        assert pool.measure([_mod(gemm)])[0].ok


def test_close_ends_every_process_and_pending_candidates(task: Task) -> None:
    pool = local.LocalPool(task, OPTIONS)
    assert pool.measure([_mod(gemm)])[0].ok
    pids = [pid for pid in pool.worker_pids().values() if pid is not None]
    futures = [pool.submit(_mod(hang)) for _ in range(6)]
    time.sleep(0.5)
    pool.close()
    pool.close()
    assert all(_gone(pid) for pid in pids)
    assert all(future.done() for future in futures)
    assert any(future.cancelled() for future in futures) or all(
        future.result().error is protocol.ErrorClass.INFRASTRUCTURE for future in futures
    )
    with pytest.raises(errors.MeasureError):
        pool.submit(_mod(gemm))


_PARENT = """
import time
from felix import without_torch
from felix.measure.pool import local
from tests.felix.measure.pool import test_local as t
from felix.task import Task
pool = local.LocalPool(Task.from_prim_func(t.gemm, "llvm -num-cores 2"), t.OPTIONS)
pool.measure([t._mod(t.gemm)] * 4)
pool.submit(t._mod(t.hang))
pool.submit(t._unrolled())
time.sleep(0.5)
pids = [pid for pid in pool.worker_pids().values() if pid]
print(pool._processes.fork_server.work_dir, *pids, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_no_orphans_after_the_parent_is_killed() -> None:
    script = _PARENT
    root = str(pathlib.Path(__file__).parents[4])
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert parent.stdout is not None
    folder, *pids = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    assert len(pids) == 4
    assert all(_gone(int(pid)) for pid in pids)
    deadline = time.monotonic() + 5
    while pathlib.Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not pathlib.Path(folder).exists()


def test_several_tasks_share_the_workers(pool: local.LocalPool) -> None:
    second = Task.from_prim_func(other_sum, "llvm -num-cores 2", name="other")
    view = pool.for_task(second)
    pids = pool.worker_pids()
    results = view.measure([_mod(other_sum), _mod(gemm)])
    assert results[0].ok
    assert results[1].error is protocol.ErrorClass.WRONG_RESULT
    assert pool.measure([_mod(gemm)])[0].ok
    assert pool.worker_pids()["fork_server"] == pids["fork_server"]
    assert pool.worker_pids()["runner"] is not None


def test_without_check_a_wrong_result_is_timed(task: Task) -> None:
    options = local.LocalOptions(builders=1, check=False)
    with local.LocalPool(task, options) as pool:
        result = pool.measure([_mod(other_sum)])[0]
    assert result.ok and not result.checked


def test_a_failing_reference_is_infrastructure() -> None:
    broken = Task.from_prim_func(gemm, "llvm")
    options = local.LocalOptions(builders=1, reference_timeout_s=0.0)
    with local.LocalPool(broken, options) as pool:
        result = pool.measure([_mod(gemm)])[0]
    assert result.error is protocol.ErrorClass.INFRASTRUCTURE and "reference" in result.message


def test_a_builder_over_its_memory_is_a_build_error(task: Task) -> None:
    options = local.LocalOptions(builders=1, build_memory_bytes=64 << 20)
    with local.LocalPool(task, options) as pool:
        result = pool.measure([_mod(gemm)])[0]
    assert result.error is protocol.ErrorClass.BUILD


@pytest.mark.parametrize("link", [build.Link.LD, build.Link.CC])
def test_libraries_bind_to_the_current_functions_of_libm(
    tmp_path: pathlib.Path, link: build.Link
) -> None:
    """Unversioned, glibc would bind `logf` to its oldest one, which is slower."""
    if platform.libc_ver()[0] != "glibc" or shutil.which("readelf") is None:
        pytest.skip("needs glibc and readelf")
    x = te.placeholder((64,), "float32", "x")
    y = te.compute((64,), lambda i: te.log(x[i]))
    module = tvm.IRModule({"main": te.create_prim_func([x, y])})
    path = build.build(module, tvm.target.Target("llvm"), str(tmp_path / "log"), link)
    command = ["readelf", "--wide", "--dyn-syms", path]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (logf,) = re.findall(r"\blogf\S*", symbols)
    assert logf.startswith("logf@GLIBC_")


@pytest.mark.parametrize("link", [build.Link.LD, build.Link.CC, build.Link.JIT])
def test_every_way_to_link_gives_a_kernel(task: Task, link: build.Link) -> None:
    if link is not build.Link.JIT and build.resolve(build.Link.AUTO) is link.JIT:
        pytest.skip("no linker here: nothing but the JIT can be tested")
    with local.LocalPool(task, local.LocalOptions(builders=1, link=link)) as pool:
        assert pool.measure([_parallel()])[0].ok


def test_auto_link_needs_no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert build.resolve(build.Link.AUTO) is build.Link.JIT


def test_a_pool_that_cannot_start_says_so(
    task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with local.LocalPool(task, local.LocalOptions(builders=1)) as pool:
        result = pool.measure([_mod(gemm)])[0]
    assert result.error is protocol.ErrorClass.INFRASTRUCTURE
    assert "out of order" in result.message


def test_cuda_without_a_device_is_refused() -> None:
    if tvm.runtime.device("cuda", 0).exist:
        pytest.skip("this machine has a CUDA device, so the refusal cannot be seen here")
    cuda = Task.from_prim_func(gemm, "cuda")
    with pytest.raises(errors.MeasureError, match="no CUDA device"):
        local.LocalPool(cuda)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [True, False])
def test_builders_stand_still_while_timing(task: Task, pause: bool) -> None:
    options = local.LocalOptions(
        builders=1,
        build_timeout_s=20,
        pause_builders=pause,
        timing=timing.TimingOptions(min_total_s=0.3, max_repeats=100_000, max_total_s=0.5),
    )
    with local.LocalPool(task, options) as pool:
        assert pool.measure([_mod(gemm)])[0].ok
        pid = pool.worker_pids()["builder-0"]
        measured = pool.submit(_mod(gemm))
        busy = pool.submit(_unrolled())
        stopped = _states(pid, until=measured.done)
        assert measured.result().ok
        assert ("T" in stopped) == pause
        assert not busy.done()


def test_timing_waits_for_who_computes_and_is_not_charged_for_it(task: Task) -> None:
    options = local.LocalOptions(builders=1, run_timeout_s=0.5)
    with local.LocalPool(task, options) as pool:
        assert pool.measure([_mod(gemm)])[0].ok
        with pool.timing_lock.shared():
            future = pool.submit(_mod(gemm))
            time.sleep(1.5)
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


@pytest.mark.slow
def test_a_build_that_waits_for_a_core_is_not_cut(task: Task) -> None:
    options = local.LocalOptions(builders=1, build_timeout_s=1.0)
    with local.LocalPool(task, options) as pool:
        assert pool.submit(_mod(gemm)).result(timeout=60).ok
        builder = pool.worker_pids()["builder-0"]
        assert builder is not None
        future = pool.submit(_unrolled())
        time.sleep(0.3)
        os.kill(builder, signal.SIGSTOP)
        time.sleep(2.0)
        assert not future.done(), "time in which it stands still does not count"
        os.kill(builder, signal.SIGCONT)
        assert future.result(timeout=60).error is protocol.ErrorClass.TIMEOUT


def test_cores_are_idle_soon_after_a_candidate_was_timed(pool: local.LocalPool) -> None:
    """TVM's threads would look for more work for 0.17 s, and keep builds from the cores."""
    (measured,) = pool.measure([_parallel()])
    pid = pool.worker_pids()["runner"]
    before_s = worker.cpu_seconds(pid)
    time.sleep(0.4)
    assert measured.ok and worker.cpu_seconds(pid) - before_s < 0.06


def test_cpu_seconds_are_those_of_the_process() -> None:
    before = worker.cpu_seconds(os.getpid())
    start = time.process_time()
    while time.process_time() - start < 0.2:
        pass
    assert 0.15 < worker.cpu_seconds(os.getpid()) - before < 5.0
    assert worker.cpu_seconds(None) == 0.0


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
        first = pool.submit(_mod(gemm)).result(timeout=30)
        again = pool.submit(_mod(gemm)).result(timeout=30)
        thorough = pool.submit(_mod(gemm), thorough=True).result(timeout=30)
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


def test_the_fork_server_loads_the_graph_level_only_when_it_is_used() -> None:
    code = """
import sys
from felix.measure.pool import fork_server_main
fork_server_main._import_tvm()
import tvm
parts = [name for name in sys.modules if name.startswith("tvm.relax")]
assert parts == ["tvm.relax"], parts
source = "@T.prim_func(s_tir=True)\\ndef main(x: T.Buffer((1,), 'float32')):\\n    x[0] = 1.0"
assert tvm.script.from_source(source).params
assert issubclass(tvm.relax.Function, tvm.ir.BaseFunc)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
