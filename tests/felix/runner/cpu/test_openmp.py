"""Kernels of TVM run on the threads that PyTorch's operators have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from felix.runner.cpu import openmp

#: A kernel that adds 1 to 4096 values in a parallel loop, and how many threads the process has.
_KERNEL = """
import os, threading, torch, tvm
from felix.runner.cpu import openmp
from tvm import s_tir, te

def n_threads():
    return len(os.listdir("/proc/self/task"))

def kernel():
    x = te.placeholder((64, 64), name="x")
    y = te.compute((64, 64), lambda i, j: x[i, j] + 1.0, name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    schedule = s_tir.Schedule(func)
    schedule.parallel(schedule.get_loops("y")[0])
    return tvm.compile(schedule.mod, target="llvm")["main"]

x, y = torch.randn(64, 64), torch.zeros(64, 64)
main = kernel()

def call():
    main(tvm.runtime.from_dlpack(x), tvm.runtime.from_dlpack(y))
    assert torch.equal(y, x + 1.0), y
    y.zero_()
"""


_REFUSING = """
# from tvm.script import ir as I
# from tvm.script import tirx as T
@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer((64,), "int32")):
        T.func_attr({"global_symbol": "main"})
        for i in T.parallel(64):
            if T.tvm_call_packed("refuse", i) == 1:
                x[i] = 0
"""


def _run(script: str, threads: str = "3", **variables: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": threads} | variables
    environment.pop("TVM_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_kernels_and_pytorch_have_the_same_threads() -> None:
    script = f"""
from felix.runner.cpu import openmp
assert openmp.use() and openmp.use()
{_KERNEL}
call()
kernels = n_threads()
torch.randn(1000, 1000).add_(1.0)
torch.randn(1000, 1000) @ torch.randn(1000, 1000)
print(kernels, n_threads())
"""
    assert _run(script) == "3 3"


def test_pytorch_says_how_many_threads() -> None:
    script = f"""
from felix.runner.cpu import openmp
openmp.use()
{_KERNEL}
counts = []
for count in (1, 4):
    torch.set_num_threads(count)
    call()
    counts.append(n_threads())
print(*counts)
"""
    assert _run(script, threads="1") == "1 4"


@pytest.mark.slow("loads PyTorch and TVM in a process")
def test_pytorch_says_it_for_threads_that_are_new_to_it() -> None:
    script = f"""
from felix.runner.cpu import openmp
{_KERNEL}
openmp.use()
main = kernel()
torch.set_num_threads(1)
before = n_threads()
counts = []

def calls():
    call()
    counts.append(n_threads())

thread = threading.Thread(target=calls)
thread.start()
thread.join()
print(counts[0] - before)
"""
    assert _run(script) == "1"  # the thread itself


@pytest.mark.slow("loads PyTorch and TVM in a process")
def test_threads_of_python_call_kernels_at_the_same_time() -> None:
    script = f"""
from felix.runner.cpu import openmp
openmp.use()
{_KERNEL}
failures = []

def calls():
    ours = torch.zeros(64, 64)
    arguments = tvm.runtime.from_dlpack(x), tvm.runtime.from_dlpack(ours)
    for _ in range(200):
        main(*arguments)
        if not torch.equal(ours, x + 1.0):
            failures.append(ours.clone())
        ours.zero_()

threads = [threading.Thread(target=calls) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(failures))
"""
    assert _run(script) == "0"


def test_a_task_that_fails_is_an_error_of_the_call() -> None:
    script = f"""
PROGRAM = {_REFUSING!r}
from felix.runner.cpu import openmp
openmp.use()
import numpy, tvm
tvm.register_global_func("refuse", lambda row: 1 // 0)
module = tvm.compile(tvm.script.from_source(PROGRAM), target="llvm")
try:
    module["main"](tvm.runtime.tensor(numpy.zeros(64, "int32")))
except (RuntimeError, ZeroDivisionError) as error:
    print(type(error).__name__)
"""
    assert _run(script) in ("RuntimeError", "ZeroDivisionError")


def test_without_pytorchs_openmp_tvm_has_all_cores_and_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openmp, "library", lambda: None)
    for name in ("TVM_NUM_THREADS", "TVM_THREAD_POOL_SPIN_COUNT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert not openmp.use.__wrapped__()
    assert os.environ["TVM_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == "0"


def test_pytorch_need_not_be_loaded_for_its_openmp() -> None:
    """As in a run worker, whose environment keeps libraries for linear algebra to one thread."""
    script = """
import os, pathlib, sys
from felix import without_torch
from felix.runner.cpu import openmp
assert openmp.use() and sys.modules["torch"] is None
openmp.set_threads(3)
import numpy, tvm
from tvm import s_tir, te
x = te.placeholder((64, 64), name="x")
y = te.compute((64, 64), lambda i, j: x[i, j] + 1.0, name="y")
schedule = s_tir.Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "main"))
schedule.parallel(schedule.get_loops("y")[0])
values = [tvm.runtime.tensor(numpy.zeros((64, 64), "float32")) for _ in range(2)]
tvm.compile(schedule.mod, target="llvm")["main"](*values)
assert "libtorch" not in pathlib.Path("/proc/self/maps").read_text()
print(len(os.listdir("/proc/self/task")))
"""
    assert _run(script, threads="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1") == "3"
