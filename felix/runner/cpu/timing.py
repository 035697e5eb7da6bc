"""One repeat of a kernel on a CPU: caches emptied, then one call by TVM's timer.

TVM's timer costs 0.03 us a call, so calls need not be bundled to be resolved; short kernels get
more repeats instead.

Emptying: every argument (TVM's own helper spares the first) is flushed line by line from all
levels with `clflush`/`dc civac`. For a 12 MB working set that takes 0.4 ms where writing
through 64 MB takes 2.5 ms, gives the same latencies within 10 % and a spread a third as large
(the sweep leaves dirty lines that the kernel has to write back). On other CPUs, a buffer
twice the last-level cache is written.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from felix.runner import timing

#: CPUs on which TVM's flush helper does something.
_FLUSHABLE = ("x86_64", "amd64", "aarch64", "arm64")


def latencies(
    library: tvm.runtime.Module,
    device: tvm.runtime.Device,
    args: Sequence[tvm.runtime.Tensor],
    options: timing.TimingOptions,
    *,
    flush: str,
    first_us: float,
    best_us: float | None,
) -> list[float]:
    """Latencies of the repeats in us; the kernel has been called once and took `first_us`.

    `flush` names the function that empties the device's caches of the arguments.
    """
    how = {"f_preproc": flush} if options.flush else {"min_repeat_ms": options.min_repeat_ms}

    def sample(repeat: int) -> list[float]:
        if repeat <= 0:
            return []
        timer = library.time_evaluator("main", device, number=1, repeat=repeat, **how)
        return [seconds * 1e6 for seconds in timer(*args).results]

    return timing.adaptive(sample, options, first_us, best_us)


def flusher(cache_bytes: int) -> Callable[..., None]:
    """A function that empties the caches of the tensors that it is called with."""
    if platform.machine().lower() in _FLUSHABLE:
        flush_all_but_first = tvm.get_global_func("cache_flush_cpu_non_first_arg")
        spared = tvm.runtime.tensor(np.zeros(1, "int32"))
        return lambda *args: flush_all_but_first(spared, *args)
    sweep = np.zeros(2 * cache_bytes, dtype="int8")

    def write_all(*args: Any) -> None:
        np.add(sweep, 1, out=sweep)

    return write_all


def flush(cache_bytes: int) -> str:
    """The name of a `flusher` that TVM can call, registered once a process."""
    name = "felix.measure.flush"
    if tvm.get_global_func(name, allow_missing=True) is None:
        tvm.register_global_func(name, flusher(cache_bytes))
    return name
