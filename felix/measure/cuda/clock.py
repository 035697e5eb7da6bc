"""The clock of a GPU: whether a candidate was timed at full speed; if not, waits and times again.

An idle device lowers its clock, so it is slow at first after each wait for a build. A probe, a
kernel of a fixed number of cycles, takes as long as the clock is slow. Before a candidate is timed
the device is kept busy until the probe is as short as at full clock; after it, the probe says
whether the clock held.

Full clock is the fastest ever measured. A lasting limit (on power, by heat) is no disturbance:
after a few waits in vain the clock of the moment counts as full until a faster one is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

#: The fastest of so many probes tells the clock.
_PROBES = 3
#: Probes that keep the device busy between two looks at the clock.
_DELAY_PROBES = 10
#: Looks without a gain after which the clock is at its fastest.
_SETTLED_PROBES = 8


class Probe(Protocol):
    """Probes of a device, as `helper_kernels.Helpers` makes them."""

    def probe_us(self) -> float:
        """Time of one probe."""
        ...

    def delay(self, count: int) -> None:
        """Keep the device busy for `count` probes."""
        ...


class ClockGuard:
    """Times candidates at full clock; see the module docstring.

    After `patience` waits in vain, one after the other, the clock of the moment counts as full.
    A wait takes up to `limit_s`; `tolerance` is relative; `now` is the time in seconds.
    """

    def __init__(
        self,
        probe: Probe,
        tolerance: float = 0.02,
        limit_s: float = 0.05,
        patience: int = 3,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._probe = probe
        self._tolerance = tolerance
        self._limit_s = limit_s
        self._patience = patience
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
        if change > 1 + self._tolerance and decides(latencies_us, change):
            self._wait_for_full_clock()
            return measure()
        return latencies_us

    def _wait_for_full_clock(self) -> float:
        """Keep the device busy until the clock is full, or for `limit_s`; the last probe."""
        full_us = self._learn_full_us() if self._full_us is None else self._full_us
        deadline = self._now() + self._limit_s
        probe_us = fastest_us = self._probe_us()
        while probe_us > full_us * (1 + self._tolerance):
            if self._now() > deadline:
                self._vain_waits += 1
                if self._vain_waits >= self._patience:
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
            n_no_faster = n_no_faster + 1 if probe_us > full_us * (1 - self._tolerance) else 0
            full_us = min(full_us, probe_us)
        return full_us

    def _probe_us(self) -> float:
        """Time of a probe now; the shortest ever is the one at full clock."""
        probe_us = min(self._probe.probe_us() for _ in range(_PROBES))
        self._full_us = min(probe_us, self._full_us or probe_us)
        return probe_us
