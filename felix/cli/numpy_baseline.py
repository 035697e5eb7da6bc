"""How long numpy takes for the same program.

`measure` runs this module as a process of its own (`python -m felix.cli.numpy_baseline`), so that
BLAS starts with as many threads as the target has cores.
Inputs are those of the correctness check. One call warms up (threads, first pages); before each
timed call the inputs are flushed from all cache levels as for our kernels (numpy's temporaries
cannot be). A call allocates its outputs, as a numpy user's would. Calls are timed in bursts over a
second, as in re-measuring, and the median counts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felix.task import Task

MAX_REPEATS, BURST, PAUSE_S = 32, 4, 0.1
MAX_TOTAL_S = 2.0
TIMEOUT_S = 60.0
#: What the process that times numpy runs; it has no use for torch.
_CHILD = (
    "from felix import without_torch; from felix.cli import numpy_baseline; "
    "numpy_baseline.child_main()"
)
#: Written through where the CPU's cache lines cannot be flushed one by one.
SWEEP_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class NumpyTime:
    """Median latency, or None with the reason."""

    latency_us: float | None
    note: str


def measure(task: Task) -> NumpyTime:
    """Time numpy on a task of this machine's CPU."""
    from felix.tir import to_numpy

    if task.target.kind.name != "llvm":
        return NumpyTime(None, "numpy does not run on this device")
    source = to_numpy.source(task.mod)
    if source is None:
        return NumpyTime(None, "the program has no plain numpy form")
    threads = str(int(task.target.attrs["num-cores"]))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
    package = str(pathlib.Path(__file__).parent.parent.parent)
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    request = json.dumps({"source": source, "task": task.to_json()})
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            input=request,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=os.environ | {"PYTHONPATH": path} | dict.fromkeys(names, threads),
        )
    except subprocess.TimeoutExpired:
        return NumpyTime(None, f"numpy took over {TIMEOUT_S:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return NumpyTime(None, f"numpy failed: {lines[-1]}")
    return NumpyTime(json.loads(done.stdout)["latency_us"], f"{threads} threads, cold caches")


def child_main() -> None:
    """Time the program on stdin; the latency goes to stdout, as JSON."""
    import numpy as np
    import tvm

    from felix.measure import reference
    from felix.task import Task

    request = json.load(sys.stdin)
    task = Task.from_json(request["task"], trusted=True)
    scope: dict[str, Any] = {}
    exec(compile(request["source"], "oracle.py", "exec"), scope)
    args = reference.arguments(task.mod)
    arrays = reference.inputs(args, 0, positive=False)
    tensors = [
        tvm.runtime.tensor(array) for array, arg in zip(arrays, args, strict=True) if arg.is_input
    ]
    names = [arg.name for arg in args if arg.is_input]
    inputs = {name: np.from_dlpack(t) for name, t in zip(names, tensors, strict=True)}
    flushable = platform.machine().lower() in ("x86_64", "amd64", "aarch64", "arm64")
    flush = tvm.get_global_func("cache_flush_cpu_non_first_arg")
    spared = tvm.runtime.tensor(np.zeros(1, "int32"))
    sweep = None if flushable else np.zeros(SWEEP_BYTES, dtype="int8")
    scope["compute"](inputs)

    def call_us() -> float:
        if sweep is None:
            flush(spared, *tensors)
        else:
            np.add(sweep, 1, out=sweep)
        begin = time.perf_counter()
        scope["compute"](inputs)
        return (time.perf_counter() - begin) * 1e6

    latencies_us = [call_us()]
    end = time.perf_counter() + MAX_TOTAL_S
    while len(latencies_us) < MAX_REPEATS and time.perf_counter() < end:
        if len(latencies_us) % BURST == 0:
            time.sleep(PAUSE_S)
        latencies_us.append(call_us())
    json.dump({"latency_us": statistics.median(latencies_us)}, sys.stdout)
