"""Attacks from inside workers of a pool: machine code of a candidate, and whole workers taken."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pathlib
import pickle
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import tvm
from tvm.script import tirx as T

from felix import errors, workloads
from felix.builder.cuda import reference
from felix.measure import inbox, local, rights, running
from felix.measure import worker as pool_worker
from felix.processes import policy
from felix.runner import protocol
from felix.task import Task
from felix.tir.design_space import default_schedule
from tests.support import gpu, tir_programs, waiting
from tests.support.cuda import library
from tests.support.hostile import besieged

#: What the memory and the environment of a worker hold is what its start left there.
pytestmark = pytest.mark.fresh_processes

N = 8
#: The pipe of a worker, and a function that sends a message as one.
_PIPE = "[int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2][0]"
_SEND = f"send = lambda text: os.write({_PIPE}, struct.pack('!i', len(text)) + text); "


def candidate_that_runs(code: str) -> tvm.IRModule:
    """A candidate whose kernel calls into the worker's interpreter."""
    python = f"exec(bytes.fromhex('{code.encode().hex()}'))"

    @tir_programs.prim_func(s_tir=True)
    def main(
        a: T.Buffer((N, N), "float32"),
        b: T.Buffer((N, N), "float32"),
        c: T.Buffer((N, N), "float32"),
    ):
        for _i in T.serial(1):
            with T.sblock("c"):
                T.reads()
                T.writes(c[0, 0])
                T.evaluate(T.call_extern("int32", "PyGILState_Ensure"))
                T.evaluate(T.call_extern("int32", "PyRun_SimpleString", python))
                T.evaluate(T.call_extern("int32", "PyGILState_Release", 1))  # as it was: unlocked
                c[0, 0] = a[0, 0] + b[0, 0]

    return tvm.IRModule({"main": main.with_attr("global_symbol", "main")})


class Takeover:
    """A request that runs code in the worker that reads it."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
        return exec, (self._code, {})


@pytest.fixture(scope="module")
def task() -> Task:
    return workloads.gemm(N, N, N, target="llvm -num-cores 2")


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[besieged.Besieged]:
    made = besieged.Besieged.make(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def gpu_file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The device of the CUDA driver that the pool's processes load."""
    return tmp_path_factory.mktemp("dev") / "nvidia0"


@pytest.fixture(scope="module")
def drivers(gpu_file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with that driver."""
    folder = tmp_path_factory.mktemp("lib")
    library.make(folder, gpu_file)
    return folder


@pytest.fixture(scope="module")
def pool(task: Task, drivers: pathlib.Path) -> Iterator[local.LocalPool]:
    options = local.LocalOptions(builders=1, run_timeout_s=30, scratch_bytes=64 << 20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FELIX_DATABASE_URL", besieged.SECRET)
        patched.setenv("AWS_SECRET_ACCESS_KEY", besieged.SECRET)
        patched.setenv("LD_LIBRARY_PATH", str(drivers), prepend=os.pathsep)
        with local.LocalPool(task, options) as opened:
            assert opened.measure([task.mod])[0].ok  # the run worker is idle now
            yield opened


def others(pool: local.LocalPool, but: str) -> list[int]:
    """The parent, the fork server and the other workers."""
    pids = {name: pid for name, pid in pool.worker_pids().items() if pid is not None}
    return [os.getpid(), *(pid for name, pid in pids.items() if name != but)]


def log_of(pool: local.LocalPool, name: str) -> str:
    return (pool._processes.fork_server.work_dir / f"{name}.log").read_text()


def take(worker: pool_worker.Worker, code: str) -> pool_worker.WorkerLost:
    """Run code in a worker, which does not survive that."""
    request: Any = Takeover(code)
    with pytest.raises(pool_worker.WorkerLost) as caught:
        worker.call(request, 30.0)
    return caught.value


def test_a_kernel_that_is_an_intruder_gets_nothing(
    pool: local.LocalPool, place: besieged.Besieged, task: Task
) -> None:
    code = place.code(pids=others(pool, "runner"))
    pool.measure([candidate_that_runs(code)])
    assert place.harm(log_of(pool, "runner")) == {}
    assert pool.measure([task.mod])[0].ok


def test_a_builder_that_is_taken_over_gets_nothing(
    pool: local.LocalPool, place: besieged.Besieged, task: Task
) -> None:
    facts = {"pids": others(pool, "builder-0"), "programs": True}
    take(pool._builders[0].worker, place.code(**facts))
    assert place.harm(log_of(pool, "builder-0")) == {}
    assert pool.measure([task.mod])[0].ok


def test_a_run_worker_of_a_gpu_that_is_taken_over_gets_nothing(
    pool: local.LocalPool, place: besieged.Besieged
) -> None:
    worker = pool._processes._worker(
        "gpu-runner",
        rights.cuda_runner(pool._folders),
        library.GPU,
        role="cuda",
        threads=1,
        nice=0,
    )
    take(worker, place.code(pids=others(pool, "gpu-runner")))
    assert place.harm(log_of(pool, "gpu-runner")) == {}


@pytest.mark.parametrize(
    ("is_there", "is_allowed", "is_confined", "failure"),
    [
        (True, True, True, None),
        (True, False, False, None),
        (False, True, True, "DriverError: CUDA_ERROR_OPERATING_SYSTEM in cuInit"),
    ],
    ids=["it works", "it needs another right", "it is broken"],
)
def test_a_gpu_is_used_by_a_confined_worker_if_its_driver_works_so(
    pool: local.LocalPool,
    gpu_file: pathlib.Path,
    is_there: bool,
    is_allowed: bool,
    is_confined: bool,
    failure: str | None,
) -> None:
    """With a driver that asks the system for what NVIDIA's does."""
    gpu_file.touch() if is_there else gpu_file.unlink(missing_ok=True)
    (pool._folders.of_runner(0) / "helpers-sm_90.cubin").write_bytes(b"cubin")
    may = rights.cuda_runner(pool._folders)
    devices = [*may.devices, *([str(gpu_file)] if is_allowed else [])]
    may = dataclasses.replace(may, devices=devices)
    worker = pool._processes._worker(
        "gpu-runner", may, library.GPU, role="cuda", threads=1, nice=0
    )
    quiet = running.Quiet(pool.timing_lock, ())
    runs = running.LocalRunner(worker, quiet, local.LocalOptions(), library.GPU)
    runs.open("sm_90")
    assert worker.is_confined is is_confined and runs.broken == failure
    assert (runs.unconfined is None) is is_confined
    assert (worker.pid is not None) is (is_there and is_allowed)  # one start of the driver
    if worker.pid is not None:
        assert "libtvm" not in pathlib.Path(f"/proc/{worker.pid}/maps").read_text()
    worker.kill()


@pytest.mark.skipif(not gpu.has_nvrtc(), reason="needs NVRTC")
def test_a_pool_that_has_to_be_confined_and_cannot_is_refused(
    gpu_file: pathlib.Path, drivers: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.use(monkeypatch, drivers, gpu_file, allowed=False)
    options = local.LocalOptions(builders=1, confine_gpu=policy.ConfineGpu.ON)
    with pytest.raises(errors.MeasureError, match=r"in a confined process: .* in cuInit"):
        local.LocalPool(workloads.gemm(N, N, N, target="h200"), options)


@pytest.mark.skipif(not gpu.has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("text", ["gemm:8,8,8", "reduce:100,axes=0,kind=sum"])
def test_a_gpu_gets_references_and_candidates_that_builders_made(
    text: str, gpu_file: pathlib.Path, drivers: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By processes without TVM; kernels do nothing here, so sums are not as the builder's."""
    library.use(monkeypatch, drivers, gpu_file)
    options = local.LocalOptions(builders=1, confine_gpu=policy.ConfineGpu.ON)
    task = workloads.parse(text, target="h200")
    with local.LocalPool(task, options) as pool:
        (result,) = pool.measure([default_schedule.on_gpu(task.mod).mod])
        pids = pool.worker_pids()
    is_plan = text.startswith("gemm")
    assert result.error is (None if is_plan else protocol.ErrorClass.WRONG_RESULT), result.message
    assert result.checked is is_plan and pids["builder-0"] is not None


@pytest.mark.gpu
def test_a_confined_worker_times_kernels_on_a_gpu_and_gets_nothing(
    place: besieged.Besieged,
) -> None:
    task = workloads.gemm(256, 256, 256, target="cuda")
    options = local.LocalOptions(builders=1, confine_gpu=policy.ConfineGpu.ON)
    with local.LocalPool(task, options) as pool:
        result = pool.measure([reference.scheduled(task.mod)])[0]
        assert result.ok and result.checked and pool.unconfined is None
        take(pool._stages[0].runs.worker, place.code(pids=others(pool, "runner"), open_files=500))
        assert place.harm(log_of(pool, "runner")) == {}


def test_a_pickle_in_place_of_a_reply_is_not_read(
    pool: local.LocalPool, tmp_path: pathlib.Path
) -> None:
    """It would run code in the tuner, which has all rights."""
    written = tmp_path / "written-by-the-tuner"
    pickled = pickle.dumps(("done", Takeover(f"open({str(written)!r}, 'w')")))
    worker = pool._builders[0].worker
    error = take(
        worker, f"import os, struct; {_SEND}send({pickled!r}); import time; time.sleep(9)"
    )
    assert isinstance(error, pool_worker.WorkerMisbehaved)
    assert not written.exists()


@pytest.mark.parametrize(
    "sent",
    [
        b"[" * 100_000,
        b"7",
        b'["done"]',
        b'["done", []]',
        b'["resting", -1]',
        b'["resting", NaN]',
        b'["resting", ' + b"9" * 4000 + b"]",
        b'["nothing", null]',
        b'[["done"], null]',
        b"\xff",
    ],
)
def test_nonsense_is_no_message(sent: bytes) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send_bytes(sent)
        reader = inbox.Inbox(ours)
        with pytest.raises(inbox.Nonsense):
            while reader.receive(0.1) is None:
                pass


@pytest.mark.parametrize(
    "then",
    [f"os.write({_PIPE}, struct.pack('!i', 99) + b'[\"done\"')", "send(b'[\"resting\", 1e6]')"],
    ids=["half a message", "a rest that never ends"],
)
def test_a_worker_delays_nobody(
    pool: local.LocalPool, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_worker, "_MAX_REST_S", 0.5)
    code = f"import os, struct, time; {_SEND}send(b'[\"started\", null]'); {then}; time.sleep(60)"
    request: Any = Takeover(code)
    begun = time.monotonic()
    with pytest.raises(pool_worker.WorkerTimeout):
        pool._builders[0].worker.call(request, 0.5)
    assert time.monotonic() - begun < 30


def test_a_builder_cannot_have_the_tuner_delete_a_file(
    pool: local.LocalPool, task: Task, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuner deletes the library that the reply names."""
    victim = tmp_path / "felix.db"
    victim.write_text("data")
    reply = json.dumps(["done", {"library": str(victim), "seconds": 0.1}]).encode()
    taken = Takeover(
        f"import os, struct, time; {_SEND}send(b'[\"started\", null]'); send({reply!r});"
        "time.sleep(60)"
    )
    builder = pool._builders[0].worker
    call = builder._call
    monkeypatch.setattr(builder, "_call", lambda _, *rest: call(taken, *rest))
    result = pool.measure([task.mod.with_attr("felix.fresh", "a library elsewhere")])[0]
    assert result.error is protocol.ErrorClass.BUILD and "library elsewhere" in result.message
    assert victim.read_text() == "data"


@pytest.mark.parametrize("victim", ["runner", "builder-0"])
@pytest.mark.parametrize("way", ["one file", "many files", "files without a name", "its log"])
def test_scratch_has_a_limit(pool: local.LocalPool, task: Task, victim: str, way: str) -> None:
    """64 MiB here: the worker is ended, and what it wrote is gone or small."""
    code = {
        "one file": "f = open('a', 'wb')\nfor _ in range(512): f.write(chunk)",
        "many files": "for n in range(512): open(f'{n}', 'wb').write(chunk); time.sleep(.002)",
        "files without a name": (
            "fs = []\nfor n in range(120):\n"
            " fs.append(open(f'{n}', 'wb', 0)); os.unlink(f'{n}'); fs[-1].write(chunk)"
        ),
        "its log": "for _ in range(512): os.write(2, chunk)",
    }[way]
    code = f"import os, time\nchunk = bytes(1 << 20)\n{code}\ntime.sleep(60)"
    workers = {worker.name: worker for worker in pool._workers()}
    error = take(workers[victim], code)
    left = [path for path in pool._processes.fork_server.work_dir.rglob("*") if path.is_file()]
    if isinstance(error, pool_worker.WorkerMisbehaved):
        assert "wrote more than 64 MiB" in str(error)
        assert sum(path.stat().st_size for path in left) < 8 << 20
    else:  # the kernel refused the write, and the worker ended of it
        assert way in ("one file", "its log")
        assert max(path.stat().st_size for path in left) <= 64 << 20
    workers[victim].clear()
    pool._stages[0].runs._forget_references()
    assert pool.measure([task.mod.with_attr("felix.fresh", f"{victim} {way}")])[0].ok


def test_a_fork_bomb_is_bounded(pool: local.LocalPool) -> None:
    code = "import os, time\nfor _ in range(60): os.fork() or time.sleep(60)\ntime.sleep(60)"
    begun = time.monotonic()
    error = take(pool._builders[0].worker, code)
    assert "started more than" in str(error)
    assert time.monotonic() - begun < 10
    _await_nobody_in(pool._folders.builds)


def _await_nobody_in(folder: pathlib.Path) -> None:
    """Until the last process that works in a folder has ended, which takes seconds."""
    waiting.until(lambda: not any(_works_in(each, folder) for each in psutil.process_iter()), 5)


def _works_in(process: psutil.Process, folder: pathlib.Path) -> bool:
    try:
        return process.cwd().startswith(str(folder))
    except psutil.Error:  # it has ended
        return False


def test_what_a_builder_started_ends_with_it(pool: local.LocalPool) -> None:
    """It cannot leave the group that is killed, and nothing it leaves behind goes on."""
    code = (
        "import os, time, sys\n"
        "if os.fork() == 0:\n"
        "    for leave in (os.setsid, os.setpgrp):\n"
        "        try: leave()\n"
        "        except OSError: pass\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "    os._exit(0)\n"
        "time.sleep(0.3); os.abort()"
    )
    begun = time.monotonic()
    take(pool._builders[0].worker, code)
    assert time.monotonic() - begun < 10  # though what it started holds its pipe
    _await_nobody_in(pool._folders.builds)
