"""A small fixed kernel by which a device shows that it is as fast as it was, and as others are.

A device whose noise probe is far from its own best, or from that of the fastest device of the
pool, is throttled, busy or sick: what it measures says nothing. It rests until its noise probe is
near again.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from felix.measure import work
from felix.runner import protocol

#: How many times as long it may take. Kernels of one GPU repeat within 2 % and GPUs of a
#: model differ by a few percent; a clock that heat or power holds down, or another program, costs
#: a third or more. A CPU shares its cores and caches with whatever else its machine does.
FAR = {"cuda": 1.5, "cpu": 4.0}
#: Candidates after which the noise probe is timed, or seconds without one.
EVERY_N, IDLE_S = 200, 60.0
#: Seconds between two tries of a device that rests, and two looks whether the probe is due.
AGAIN_S, LOOK_S = 10.0, 5.0
#: Runs of which the fastest counts: something that passes is no fault.
N_RUNS = 3


class NoiseProbe:
    """The noise probe of a pool; used by the threads of all its devices.

    Args:
        kind: of the devices, "cuda" or "cpu".
        clock: in seconds.
    """

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._far, self._clock = FAR[kind], clock
        self._lock = threading.Lock()
        self._task: work.PoolTask | None = None
        self._binary = ""
        self._best_us: dict[int, float] = {}
        self._tried_s: dict[int, float] = {}
        self._n_since: dict[int, int] = {}

    def arm(self, task: work.PoolTask, binary: str) -> None:
        """The kernel is built; it is due on all devices."""
        self._task, self._binary = task, binary

    def count(self, device: int, n: int) -> None:
        """A device measured so many candidates."""
        self._n_since[device] = self._n_since.get(device, 0) + n

    def is_due(self, device: int) -> bool:
        """Whether a device is to time it now."""
        if self._task is None:
            return False
        since_s = self._clock() - self._tried_s.get(device, -IDLE_S)
        return since_s >= IDLE_S or self._n_since.get(device, 0) >= EVERY_N

    def fault(
        self,
        device: int,
        run: Callable[[work.QueuedProgram, work.TaskState], protocol.Measurement],
    ) -> str | None:
        """Time it on a device; why nothing is to be measured there, or None.

        A noise probe without a latency says nothing: candidates have errors of their own.
        """
        assert self._task is not None
        state = self._task.states[device]
        runs = [run(self._candidate(), state).latency_us for _ in range(N_RUNS)]
        self._tried_s[device], self._n_since[device] = self._clock(), 0
        timed = [latency_us for latency_us in runs if latency_us is not None]
        return self._judged(device, min(timed)) if timed else None

    def _judged(self, device: int, latency_us: float) -> str | None:
        with self._lock:
            own_us = self._best_us.get(device, latency_us)
            self._best_us[device] = min(own_us, latency_us)
            # The median; of two, the faster one, since one of them is right.
            kind_us = statistics.median_low(self._best_us.values())
        for against_us, words in ((own_us, "as before"), (kind_us, "as on others of its kind")):
            if latency_us > self._far * against_us:
                ratio = latency_us / against_us
                words = f"{ratio:.1f} times as long {words}"
                return f"its noise probe takes {words}: it is throttled or busy"
        return None

    def _candidate(self) -> work.QueuedProgram:
        assert self._task is not None
        return work.QueuedProgram(self._task, "", "noise-probe", binary=self._binary)
