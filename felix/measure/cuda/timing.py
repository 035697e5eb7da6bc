"""Timing of CUDA kernels: one repeat, cold or warm, between two events on the stream.

Cold repeats are put on the stream back to back, each after a sweep of twice the L2 that also hides
what the CPU needs to launch, so events see nothing but kernels. A warm repeat is a bundle of calls
behind a delay, in which the CPU queues all of them. `measure.timing` says how many repeats there
are, `clock` whether the device ran at full clock meanwhile.
"""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Sequence

from felix.measure import timing
from felix.measure.cuda import driver, helper_kernels

#: Most cold repeats put on the stream before waiting for them.
_BATCH = 32
#: Launches of warm calls behind one delay, if one call has no more. With the delay's they are
#: fewer than a stream takes (1,024); if the CPU had to wait for room, the times of short kernels
#: would have its launches in them.
_QUEUED = 512


class KernelTimer:
    """Times calls of candidates on a stream; a call launches all its `kernels` in order."""

    def __init__(self, context: driver.Context, helpers: helper_kernels.Helpers) -> None:
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
