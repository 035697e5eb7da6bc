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

import dataclasses
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.script import ir_builder
from tvm.tirx.script import builder as tirx

from felix.measure import timing

#: CPUs on which TVM's flush helper does something.
_FLUSHABLE = ("x86_64", "amd64", "aarch64", "arm64")


def latencies(
    library: tvm.runtime.Module,
    device: tvm.runtime.Device,
    args: Sequence[tvm.runtime.Tensor],
    options: timing.TimingOptions,
    *,
    cache_bytes: int,
    first_us: float,
    best_us: float | None,
) -> list[float]:
    """Latencies of the repeats in us; the kernel has been called once and took `first_us`."""
    sample = _sampler(library, device, args, options, cache_bytes)
    return timing.adaptive(sample, options, first_us, best_us)


def _sampler(
    library: tvm.runtime.Module,
    device: tvm.runtime.Device,
    args: Sequence[tvm.runtime.Tensor],
    options: timing.TimingOptions,
    cache_bytes: int,
) -> Callable[[int], list[float]]:
    settings: dict[str, Any] = {"number": 1}
    if not options.flush:
        settings["min_repeat_ms"] = options.min_repeat_ms
    else:
        settings["f_preproc"] = _flush(cache_bytes)

    def sample(repeat: int) -> list[float]:
        if repeat <= 0:
            return []
        timer = library.time_evaluator("main", device, repeat=repeat, **settings)
        return [seconds * 1e6 for seconds in timer(*args).results]

    return sample


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


def _flush(cache_bytes: int) -> str:
    """Register the flush for this process; returns its global name."""
    name = "felix.measure.flush"
    if tvm.get_global_func(name, allow_missing=True) is None:
        tvm.register_global_func(name, flusher(cache_bytes))
    return name


# Whether a kernel was timed at full speed on a CPU, by a probe; if not, waits and times again.
#
# A virtual machine's cores are not always cores. Where the hypervisor puts two of them on the
# two threads of one physical core, a kernel of two threads takes up to twice as long, for
# milliseconds or seconds, and nothing in the guest shows it: no steal time, no waiting threads.
# Such phases took an eighth of the time on a two-core AMD EPYC (Zen 4) guest, and 512^3 GEMMs of
# 1.27 to 1.40 ms took 2.45 ms in them.
#
# The probe is a parallel loop of multiply-adds in registers, as many as keep the vector units
# busy, on as many threads as the candidates. It is 1.75 times as long in such a phase. It sees
# neither memory nor caches, so it does not see all that disturbs. After a pause of 0.2 s the
# hypervisor places idle cores anew, which ends most phases. Only a kernel whose latency decides
# waits for it.

#: A probe that takes this many times as long as the fastest shows contention.
SLOW_PROBE_RATIO = 1.4
#: Independent multiply-adds: 8 vectors of AVX-512, as many as keep two units busy for their
#: latency of 4 cycles. Narrower vectors do not fit into the registers and keep the stores busy.
_LANES = 128
#: Dependent multiply-adds of each: 25 to 100 us.
_STEPS = 10_000
#: The fastest of so many calls is the probe's time.
_CALLS = 3

#: A kernel takes at most so many times as long in a slow phase: two threads on one core.
MAX_SLOWDOWN = 2.0
#: How often a kernel is timed again.
_MAX_RETRIES = 2
#: Pauses that end no phase.
_NAPS_S = (0.002, 0.01)


@dataclasses.dataclass(slots=True)
class ContentionGuard:
    """Watches the speed of the cores by calls of `probe`, which returns its own time in us.

    Full speed is the fastest ever measured. A load that lasts is no disturbance: after `patience`
    pauses in vain, the speed of the moment counts as full until a faster one is measured.
    `rest` sleeps for so many seconds.
    """

    probe: Callable[[], float]
    rest: Callable[[float], None] = time.sleep
    pause_s: float = 0.2
    patience: int = 2
    _full_us: float | None = None

    def learn(self) -> None:
        """Measure how fast the cores can be, several times: one may fall into a slow phase."""
        for _ in range(self.patience):
            self._slowdown()
            self.rest(0.5 * self.pause_s)

    def measure_stable(
        self,
        measure: Callable[[], list[float]],
        decides: Callable[[list[float]], bool] = lambda latencies_us: True,
    ) -> list[float]:
        """Latencies that `measure` returns, at full speed if it can be reached.

        It measures at once. While the cores were slow before or after and
        `decides(latencies_us)` is true, it waits and measures again, up to twice.
        """
        slow = self._is_slow()
        latencies_us = measure()
        for _ in range(_MAX_RETRIES):
            if not decides(latencies_us) or not (slow or self._is_slow()):
                break
            self._settle()
            latencies_us, slow = measure(), False
        return latencies_us

    def _settle(self) -> None:
        """Wait until the cores are at full speed, or it has taken too long."""
        for _ in range(self.patience):
            if not self._is_slow():
                return
            self.rest(self.pause_s)
        slowdown = self._slowdown()
        assert self._full_us is not None
        self._full_us *= slowdown

    def _is_slow(self) -> bool:
        """Whether the cores are slow, and are still after a nap or two.

        Another process that runs for a millisecond is no phase, and the median bears it.
        """
        for nap_s in _NAPS_S:
            if self._slowdown() <= SLOW_PROBE_RATIO:
                return False
            self.rest(nap_s)
        return self._slowdown() > SLOW_PROBE_RATIO

    def _slowdown(self) -> float:
        """Time of the probe over the shortest ever."""
        probe_us = min(self.probe() for _ in range(_CALLS))
        self._full_us = min(probe_us, self._full_us or probe_us)
        return probe_us / self._full_us


def multiply_adds(target: tvm.target.Target, threads: int) -> Callable[[], float]:
    """A probe for a CPU target, ready to use; takes 0.1 s to build."""
    with ir_builder.IRBuilder() as program, tirx.prim_func(s_tir=True):
        tirx.func_name("main")
        x = tirx.arg("x", tirx.buffer((threads, _LANES), "float32"))
        with tirx.parallel(threads) as i, tirx.serial(_STEPS), tirx.vectorized(_LANES) as lane:
            product = x[i, lane] * tirx.float32(0.5)
            tirx.buffer_store(x, product + tirx.float32(1.0), [i, lane])
    main = program.get()
    kernel = tvm.tirx.build(tvm.IRModule({"main": main}), target)["main"]
    tensor = tvm.runtime.tensor(np.ones((threads, _LANES), "float32"))
    kernel(tensor)  # starts TVM's threads
    _leave_workers_alone()

    def probe() -> float:
        start = time.perf_counter()
        kernel(tensor)
        return (time.perf_counter() - start) * 1e6

    return probe


def _leave_workers_alone() -> None:
    """Keep the calling thread off the cores that TVM has bound its worker threads to.

    TVM binds each worker to a core and lets the caller, which does its share of the work, run on
    any. Where that is a worker's core, and kernels are short, nothing moves it away.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    others = {int(name) for name in os.listdir("/proc/self/task")} - {threading.get_native_id()}
    bound = [cores for cores in map(os.sched_getaffinity, others) if len(cores) == 1]
    free = os.sched_getaffinity(0).difference(*bound)
    if free:
        os.sched_setaffinity(0, free)
