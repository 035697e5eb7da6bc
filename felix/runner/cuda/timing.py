"""Timing of CUDA kernels: one repeat, cold or warm, between two events on the stream.

Cold repeats are put on the stream back to back, each after a sweep of twice the L2 that also hides
what the CPU needs to launch, so events see nothing but kernels. A warm repeat is a bundle of calls
behind a delay, in which the CPU queues all of them. `runner.timing` says how many repeats there
are, `ClockGuard` whether the device ran at full clock meanwhile.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Sequence

from felix.runner import timing
from felix.runner.cuda import driver, tensors

#: Most cold repeats put on the stream before waiting for them.
_BATCH = 32
#: Launches of warm calls behind one delay, if one call has no more. With the delay's they are
#: fewer than a stream takes (1,024); if the CPU had to wait for room, the times of short kernels
#: would have its launches in them.
_QUEUED = 512


class KernelTimer:
    """Times calls of candidates on a stream; a call launches all its `kernels` in order."""

    def __init__(self, context: driver.Context, helpers: tensors.Helpers) -> None:
        self._context = context
        self._helpers = helpers
        self._events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []

    def sampler(
        self, kernels: Sequence[driver.Kernel], options: timing.TimingOptions
    ) -> Callable[[int], list[float]]:
        """A function that times so many repeats, in us, as `timing.adaptive` takes it."""
        if options.flush:
            return lambda repeat: self._in_batches(kernels, repeat)
        once_us = min(self.warm_us(kernels, 1) for _ in range(3))
        number = max(1, math.ceil(options.min_repeat_ms * 1e3 / max(once_us, 0.5)))
        calls = min(number, max(1, _QUEUED // len(kernels)))
        bundles = [calls] * math.ceil(number / calls)
        return lambda repeat: [
            statistics.fmean(self.warm_us(kernels, calls) for calls in bundles)
            for _ in range(repeat)
        ]

    def cold_us(self, kernels: Sequence[driver.Kernel], repeat: int) -> list[float]:
        """Times of `repeat` calls, each with a cold L2."""
        events = self._event_pairs(repeat)
        for start, end in events:
            self._helpers.sweep()
            self._context.record(start)
            for kernel in kernels:
                self._context.launch(kernel)
            self._context.record(end)
        self._context.synchronize()
        return [self._context.elapsed_us(start, end) for start, end in events]

    def warm_us(self, kernels: Sequence[driver.Kernel], calls: int) -> float:
        """Mean time of `calls` calls, one after the other."""
        ((start, end),) = self._event_pairs(1)
        # If a launch takes under 15 us, all are queued before the first event comes.
        self._helpers.delay(1 + calls * len(kernels) // 2)
        self._context.record(start)
        for _ in range(calls):
            for kernel in kernels:
                self._context.launch(kernel)
        self._context.record(end)
        self._context.synchronize()
        return self._context.elapsed_us(start, end) / calls

    def _in_batches(self, kernels: Sequence[driver.Kernel], repeat: int) -> list[float]:
        latencies_us: list[float] = []
        while len(latencies_us) < repeat:
            batch = min(_BATCH, repeat - len(latencies_us))
            latencies_us += self.cold_us(kernels, batch)
        return latencies_us

    def _event_pairs(self, count: int) -> list[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
        """Pairs of events, the same for every candidate."""
        while len(self._events) < count:
            self._events.append((self._context.event(), self._context.event()))
        return self._events[:count]


# The clock of a GPU: whether a candidate was timed at full speed; if not, waits and times again.
#
# An idle device lowers its clock, so it is slow at first after each wait for a build. A probe, a
# kernel of a fixed number of cycles, takes as long as the clock is slow. Before a candidate is
# timed the device is kept busy until the probe is as short as at full clock; after it, the probe
# says whether the clock held.
#
# Full clock is the fastest ever measured. A lasting limit (on power, by heat) is no disturbance:
# after a few waits in vain the clock of the moment counts as full until a faster one is
# measured.

#: The fastest of so many probes tells the clock.
_PROBES = 3
#: Probes that keep the device busy between two looks at the clock.
_DELAY_PROBES = 10
#: Looks without a gain after which the clock is at its fastest.
_SETTLED_PROBES = 8
#: How far a clock may be from the fastest, relative to it.
_TOLERANCE = 0.02
#: How long a wait for the fastest clock takes at most, in seconds, and how many may be in vain.
_WAIT_S, _PATIENCE = 0.05, 3


class ClockGuard:
    """Times candidates at full clock.

    After `_PATIENCE` waits in vain, one after the other, the clock of the moment counts as full.
    `now` is the time in seconds.
    """

    def __init__(
        self, probe: tensors.Helpers, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._probe = probe
        self._now = now
        self._full_us: float | None = None
        self._vain_waits = 0

    def measure_stable(
        self,
        measure: Callable[[], list[float]],
        decides: Callable[[list[float], float], bool] = lambda latencies_us, change: True,
    ) -> list[float]:
        """Latencies that `measure` returns, at full clock if it can be reached.

        Where the clock changed meanwhile, by a factor `change`, and
        `decides(latencies_us, change)` is true, it measures once more.
        """
        before_us = self._wait_for_full_clock()
        latencies_us = measure()
        after_us = self._probe_us()
        change = max(before_us, after_us) / min(before_us, after_us)
        if change > 1 + _TOLERANCE and decides(latencies_us, change):
            self._wait_for_full_clock()
            return measure()
        return latencies_us

    def _wait_for_full_clock(self) -> float:
        """Keep the device busy until the clock is full, or for `limit_s`; the last probe."""
        full_us = self._learn_full_us() if self._full_us is None else self._full_us
        deadline = self._now() + _WAIT_S
        probe_us = fastest_us = self._probe_us()
        while probe_us > full_us * (1 + _TOLERANCE):
            if self._now() > deadline:
                self._vain_waits += 1
                if self._vain_waits >= _PATIENCE:
                    self._full_us, self._vain_waits = fastest_us, 0
                return probe_us
            self._probe.delay(_DELAY_PROBES)
            probe_us = self._probe_us()
            fastest_us = min(fastest_us, probe_us)
        self._vain_waits = 0
        return probe_us

    def _learn_full_us(self) -> float:
        """The probe's time at full clock: the device is kept busy until it gets no faster."""
        full_us, n_no_faster = self._probe_us(), 0
        while n_no_faster < _SETTLED_PROBES:
            self._probe.delay(_DELAY_PROBES)
            probe_us = self._probe_us()
            n_no_faster = n_no_faster + 1 if probe_us > full_us * (1 - _TOLERANCE) else 0
            full_us = min(full_us, probe_us)
        return full_us

    def _probe_us(self) -> float:
        """Time of a probe now; the shortest ever is the one at full clock."""
        probe_us = min(self._probe.probe_us() for _ in range(_PROBES))
        self._full_us = min(probe_us, self._full_us or probe_us)
        return probe_us
