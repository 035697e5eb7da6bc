"""Whether a kernel was timed at full speed on a CPU, by a probe; if not, waits and times again.

A virtual machine's cores are not always cores. Where the hypervisor puts two of them on the two
threads of one physical core, a kernel of two threads takes up to twice as long, for milliseconds
or seconds, and nothing in the guest shows it: no steal time, no waiting threads. Such phases took
an eighth of the time on a two-core AMD EPYC (Zen 4) guest, and 512^3 GEMMs of 1.27 to 1.40 ms took
2.45 ms in them.

The probe is a parallel loop of multiply-adds in registers, as many as keep the vector units busy,
on as many threads as the candidates. It is 1.75 times as long in such a phase. It sees neither
memory nor caches, so it does not see all that disturbs. After a pause of 0.2 s the hypervisor
places idle cores anew, which ends most phases. Only a kernel whose latency decides waits for it.

An artifact has a copy of this file (`calm.py`), so it imports nothing of Felix.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import tvm
from tvm.script import ir_builder
from tvm.tirx.script import builder as tirx

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
        slow = self._detect_slowness()
        latencies_us = measure()
        for _ in range(_MAX_RETRIES):
            if not decides(latencies_us) or not (slow or self._detect_slowness()):
                break
            self._settle()
            latencies_us, slow = measure(), False
        return latencies_us

    def _settle(self) -> None:
        """Wait until the cores are at full speed, or it has taken too long."""
        for _ in range(self.patience):
            if not self._detect_slowness():
                return
            self.rest(self.pause_s)
        slowdown = self._slowdown()
        assert self._full_us is not None
        self._full_us *= slowdown

    def _detect_slowness(self) -> bool:
        """Probe the cores: whether they are slow, and are still after a nap or two.

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
