"""How many candidates a device measured lately, and how many it failed."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

#: How far back it counts, and in what steps, in seconds.
SPAN_S, STEP_S = 3600.0, 60.0


class History:
    """Counts by the minute; one thread adds, others read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: (minute, measured, failed), oldest first
        self._steps: collections.deque[tuple[int, int, int]] = collections.deque(
            maxlen=int(SPAN_S / STEP_S)
        )

    def add(self, is_failure: bool) -> None:
        """One more candidate."""
        step, measured, failed = int(self._clock() / STEP_S), 0, 0
        if self._steps and self._steps[-1][0] == step:
            _, measured, failed = self._steps.pop()
        self._steps.append((step, measured + 1, failed + is_failure))

    def counts(self) -> tuple[int, int]:
        """(measured, of them failed) in the last hour."""
        first = int((self._clock() - SPAN_S) / STEP_S)
        recent = [each for each in self._steps.copy() if each[0] > first]
        return sum(each[1] for each in recent), sum(each[2] for each in recent)
