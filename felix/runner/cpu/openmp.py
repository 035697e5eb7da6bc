"""One pool of threads: TVM's kernels on the threads of PyTorch's OpenMP.

A kernel starts its tasks by a function whose address TVM stores in it when it is loaded. TVM's own
has threads beside PyTorch's, on half of the processors, and both wait by spinning: in turns with
PyTorch's operators each would keep the other's threads from running. `use` stores another one,
which asks OpenMP for as many threads as PyTorch's operators get in the calling thread. It is LLVM
IR, which TVM compiles, so nothing else has to be here.

Artifacts have a copy of this file: it imports nothing of Felix.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import pathlib
import sys
import tempfile
from typing import Any

import tvm
import tvm_ffi

#: What the launch asks of OpenMP, in the order in which it takes their addresses.
_FUNCTIONS = ("GOMP_parallel", "omp_get_max_threads", "omp_get_thread_num", "omp_get_num_threads")
#: With what it says in the calling thread that a task failed.
_RAISE = "TVMFFIErrorSetRaisedFromCStr"
#: What a kernel calls the launch.
_SYMBOL = b"__TVMBackendParallelLaunch"


@functools.cache
def use() -> bool:
    """Let kernels that this process loads from now on share PyTorch's threads.

    Without PyTorch's OpenMP they have TVM's threads, one for each processor that this process may
    use, which sleep while they wait.

    Returns:
        Whether PyTorch's OpenMP is here.
    """
    openmp = library()
    if openmp is None:
        os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
        return False
    if sys.modules.get("torch") is not None:
        # tells OpenMP of a thread that is new to PyTorch how many threads it may have
        addresses_of = (_FUNCTIONS[0], "_ZN2at15get_num_threadsEv", *_FUNCTIONS[2:])
    else:
        addresses_of = _FUNCTIONS
    ffi = _loaded(pathlib.Path(tvm_ffi.libinfo.find_libtvm_ffi()))
    addresses = [_address(openmp, name) for name in addresses_of]
    launch = _compiled()["felix_openmp"](*addresses, _address(ffi, _RAISE))
    ffi.TVMFFIEnvModRegisterContextSymbol(_SYMBOL, ctypes.c_void_p(launch))
    return True


@functools.cache
def library() -> Any:
    """The OpenMP that PyTorch uses, or None; PyTorch itself need not be loaded."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = pathlib.Path(spec.submodule_search_locations[0], "lib")
    found = sorted(folder.glob("lib*omp*.so*"))
    if sys.modules.get("torch") is not None:  # what it has loaded, from wherever
        found.insert(0, folder / "libtorch_cpu.so")
    for path in found:
        opened = _loaded(path)
        if all(hasattr(opened, name) for name in _FUNCTIONS):
            return opened
    return None


def set_threads(count: int) -> None:
    """Let the calling thread's kernels have so many threads, where OpenMP is here."""
    openmp = library()
    if openmp is not None:
        openmp.omp_set_num_threads(count)


def _loaded(path: pathlib.Path) -> Any:
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None


def _address(openmp: Any, name: str) -> int | None:
    return ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value


def _compiled() -> tvm.runtime.Module:
    """The launch, for this machine's processor as TVM's LLVM lays out data for it."""
    here = tvm.target.Target("llvm")
    empty = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attrs(
        {"global_symbol": "empty", "target": here}
    )
    build = tvm.get_global_func("target.build.llvm")
    lines = build(tvm.IRModule({"empty": empty}), here).inspect_source("ll").splitlines()
    layout = next(line for line in lines if line.startswith("target datalayout"))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "launch.ll")
        path.write_text(f"{layout}\n{_LAUNCH}")
        return tvm.runtime.load_module(str(path))


# `felix_openmp` takes the addresses of _FUNCTIONS and _RAISE and gives that of `launch`, which is
# in the place of TVMBackendParallelLaunch: it calls a function for the tasks 0 to n - 1 of a loop.
# A thread takes every m-th task, for OpenMP may give fewer threads than it was asked for.
_LAUNCH = r"""
%work = type { ptr, ptr, i32, i32 }   ; the function, its data, tasks, what a failed task returned
%env = type { ptr, i32 }              ; TVMParallelGroupEnv: no barrier, tasks
@parallel = internal global ptr null
@max_threads = internal global ptr null
@thread_number = internal global ptr null
@n_threads = internal global ptr null
@raise = internal global ptr null
@kind = internal constant [13 x i8] c"RuntimeError\00"
@message = internal constant [40 x i8] c"a task of a parallel loop of TVM failed\00"

define internal i32 @launch(ptr %function, ptr %data, i32 %asked) {
  %work = alloca %work
  %max_threads = load ptr, ptr @max_threads
  %most = call i32 %max_threads()
  %all = icmp eq i32 %asked, 0
  %tasks = select i1 %all, i32 %most, i32 %asked
  store ptr %function, ptr %work
  %place1 = getelementptr %work, ptr %work, i32 0, i32 1
  store ptr %data, ptr %place1
  %place2 = getelementptr %work, ptr %work, i32 0, i32 2
  store i32 %tasks, ptr %place2
  %place3 = getelementptr %work, ptr %work, i32 0, i32 3
  store i32 0, ptr %place3
  %parallel = load ptr, ptr @parallel
  call void %parallel(ptr @thread, ptr %work, i32 %tasks, i32 0)
  %status = load i32, ptr %place3
  %is_well = icmp eq i32 %status, 0
  br i1 %is_well, label %end, label %failed
failed:
  %raise = load ptr, ptr @raise
  call void %raise(ptr @kind, ptr @message)   ; the error of another thread is not this one's
  br label %end
end:
  ret i32 %status
}

define internal void @thread(ptr %work) {
begin:
  %env = alloca %env
  %function = load ptr, ptr %work
  %place1 = getelementptr %work, ptr %work, i32 0, i32 1
  %data = load ptr, ptr %place1
  %place2 = getelementptr %work, ptr %work, i32 0, i32 2
  %tasks = load i32, ptr %place2
  %place3 = getelementptr %work, ptr %work, i32 0, i32 3
  store ptr null, ptr %env
  %count = getelementptr %env, ptr %env, i32 0, i32 1
  store i32 %tasks, ptr %count
  %thread_number = load ptr, ptr @thread_number
  %first = call i32 %thread_number()
  %n_threads = load ptr, ptr @n_threads
  %step = call i32 %n_threads()
  br label %next
next:
  %task = phi i32 [ %first, %begin ], [ %after, %ended ]
  %is_left = icmp slt i32 %task, %tasks
  br i1 %is_left, label %run, label %end
run:
  %status = call i32 %function(i32 %task, ptr %env, ptr %data)
  %is_well = icmp eq i32 %status, 0
  br i1 %is_well, label %ended, label %failed
failed:
  store atomic i32 %status, ptr %place3 monotonic, align 4
  br label %ended
ended:
  %after = add i32 %task, %step
  br label %next
end:
  ret void
}

define dllexport i32 @__tvm_ffi_felix_openmp(ptr %self, ptr %arguments, i32 %count, ptr %result) {
  %place0 = getelementptr i64, ptr %arguments, i32 1
  %value0 = load ptr, ptr %place0
  store ptr %value0, ptr @parallel
  %place1 = getelementptr i64, ptr %arguments, i32 3
  %value1 = load ptr, ptr %place1
  store ptr %value1, ptr @max_threads
  %place2 = getelementptr i64, ptr %arguments, i32 5
  %value2 = load ptr, ptr %place2
  store ptr %value2, ptr @thread_number
  %place3 = getelementptr i64, ptr %arguments, i32 7
  %value3 = load ptr, ptr %place3
  store ptr %value3, ptr @n_threads
  %place4 = getelementptr i64, ptr %arguments, i32 9
  %value4 = load ptr, ptr %place4
  store ptr %value4, ptr @raise
  store i64 1, ptr %result
  %place = getelementptr i64, ptr %result, i32 1
  %address = ptrtoint ptr @launch to i64
  store i64 %address, ptr %place
  ret i32 0
}
!llvm.module.flags = !{!0}
!0 = !{i32 2, !"tvm_target", !"{\22kind\22:\22llvm\22}"}
"""
