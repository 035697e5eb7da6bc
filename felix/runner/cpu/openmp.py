"""One pool of threads: TVM's kernels on the threads of PyTorch's OpenMP.

A kernel starts its tasks by a function whose address TVM stores in it when it is loaded. TVM's own
has threads beside PyTorch's, on half of the processors, and both wait by spinning: in turns with
PyTorch's operators each would keep the other's threads from running. `use` stores another one,
which asks OpenMP for as many threads as PyTorch's operators get in the calling thread. It is LLVM
IR (`launch.ll`), which TVM compiles, so nothing else has to be here.

Artifacts have copies of both files: this one imports nothing of Felix.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import os
import pathlib
import shutil
import sys
import tempfile
from typing import Any

import tvm
import tvm_ffi

#: The launch.
_LAUNCH = pathlib.Path(__file__).with_name("launch.ll")
#: OpenMP's libraries: GNU's, LLVM's, Intel's.
_NAMES = ("libgomp", "libomp", "libiomp")
#: What it asks of OpenMP, in the order in which it takes their addresses.
_FUNCTIONS = ("GOMP_parallel", "omp_get_max_threads", "omp_get_thread_num", "omp_get_num_threads")
#: What PyTorch has for the second, which tells OpenMP of a thread that is new to PyTorch how many
#: threads it may have.
_OF_PYTORCH = "_ZN2at15get_num_threadsEv"
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
    names = list(_FUNCTIONS)
    if hasattr(openmp, _OF_PYTORCH):
        names[1] = _OF_PYTORCH
    ffi = _loaded(pathlib.Path(tvm_ffi.libinfo.find_libtvm_ffi()))
    addresses = [*(_address(openmp, name) for name in names), _address(ffi, _RAISE)]
    array = (ctypes.c_void_p * len(addresses))(*addresses)
    launch = _compiled()["felix_openmp"](ctypes.addressof(array))
    ffi.TVMFFIEnvModRegisterContextSymbol(_SYMBOL, ctypes.c_void_p(launch))
    return True


@functools.cache
def library() -> Any:
    """The OpenMP that PyTorch uses, or None; PyTorch itself need not be loaded."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = pathlib.Path(spec.submodule_search_locations[0], "lib")
    found = sorted(each for name in _NAMES for each in folder.glob(f"{name}*.so*"))
    if sys.modules.get("torch") is not None:  # what it has loaded, from wherever
        found.insert(0, folder / "libtorch_cpu.so")
    for path in found:
        opened = _loaded(path)
        if all(hasattr(opened, name) for name in _FUNCTIONS):
            return opened
    return None


def copy(folder: pathlib.Path) -> list[str]:
    """Copy what `use` needs into an artifact; the names of the files."""
    files = [pathlib.Path(__file__), _LAUNCH]
    for each in files:
        shutil.copyfile(each, folder / each.name)
    return [each.name for each in files]


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
        path.write_text(f"{layout}\n{_LAUNCH.read_text()}")
        return tvm.runtime.load_module(str(path))
