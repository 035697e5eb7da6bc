"""Who computes when, and where the wall time goes.

`ComputeGuard` holds the measuring pool's lock in shared mode while the tuner computes, and lets a
waiting kernel be timed first at every call of the cost model (about every 10 ms). `Breakdown`
adds up wall seconds of the tuner's thread; its parts do not overlap and sum to nearly all.
`Clock` counts the seconds of a run, `TimeLimit` says what they are for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from felix.measure import locks

#: How often a wait calls `ComputeGuard.check`, in seconds.
POLL_S = 0.2


class Clock:
    """Seconds of tuning, those of resumed sessions included."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._earlier_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        return self._earlier_s + time.monotonic() - self._started_s

    def begin(self, started_s: float) -> None:
        """Count from an earlier moment of `time.monotonic`."""
        self._started_s = started_s

    def resume(self, earlier_s: float) -> None:
        """Go on after so many seconds of earlier sessions."""
        self._earlier_s = earlier_s


#: Of a run's seconds this share, and so many at most, are for its end: what is on its way is
#: measured, the fastest candidates again.
_ENDING, _MAX_ENDING_S = 0.2, 20.0


@dataclasses.dataclass(slots=True)
class TimeLimit:
    """When a run of so many seconds ends, by its clock; None: never.

    `earlier_s` are those of earlier sessions that do not count.
    """

    seconds: float | None
    earlier_s: float = 0.0

    @property
    def asking_s(self) -> float:
        """Until then rounds begin."""
        if self.seconds is None:
            return math.inf
        return self.end_s - min(_ENDING * self.seconds, _MAX_ENDING_S)

    @property
    def end_s(self) -> float:
        """Then it ends, whatever is on its way."""
        return math.inf if self.seconds is None else self.earlier_s + self.seconds


@dataclasses.dataclass(slots=True)
class Breakdown:
    """Wall seconds of the tuner's thread by what it did; workers' seconds beside."""

    #: loading libraries and the cost model, starting workers
    start_s: float = 0.0
    #: sketches and their formulas
    extract_s: float = 0.0
    #: choosing candidates
    search_s: float = 0.0
    #: making their schedules with TVM
    schedule_s: float = 0.0
    #: fine-tuning the cost model
    train_s: float = 0.0
    #: waiting while candidates were built
    build_wait_s: float = 0.0
    #: waiting while candidates were checked and timed
    measure_s: float = 0.0
    #: checkpoints
    save_s: float = 0.0
    total_s: float = 0.0
    #: worker seconds, which overlap with all of the above
    build_work_s: float = 0.0
    run_work_s: float = 0.0

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Add the block's wall time to `part` (a field's name without `_s`)."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - start)

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        name = f"{part}_s"
        setattr(self, name, getattr(self, name) + seconds)

    def resume(self, earlier: Breakdown) -> None:
        """Add the seconds of an earlier session."""
        for field in dataclasses.fields(earlier):
            total = getattr(earlier, field.name) + getattr(self, field.name)
            setattr(self, field.name, total)

    @property
    def other_s(self) -> float:
        """What no part names."""
        beside = ("total_s", "build_work_s", "run_work_s")
        parts = {n: s for n, s in dataclasses.asdict(self).items() if n not in beside}
        named: float = sum(parts.values())
        return max(0.0, self.total_s - named)


class Stopped(Exception):
    """`TuneOptions.should_stop` said so."""


class TimeUp(Exception):
    """The seconds of a run are used up."""


class ComputeGuard:
    """The tuner's side of the pool's timing lock; used by one thread."""

    def __init__(
        self,
        timing_lock: locks.ReadWriteLock,
        breakdown: Breakdown,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self._should_stop = should_stop
        self._is_over: Callable[[], bool] | None = None
        self._timing_lock = timing_lock
        self._breakdown = breakdown
        self._held: contextlib.AbstractContextManager[None] | None = None
        self._waited_s = 0.0

    @contextlib.contextmanager
    def computing(self, part: str) -> Iterator[None]:
        """Compute while no kernel is timed; the time goes to `part`, waiting to `measure`."""
        start, before = time.perf_counter(), self._waited_s
        try:
            self._enter()
            yield
        finally:
            self._leave()
            waited = self._waited_s - before
            self._breakdown.add(part, time.perf_counter() - start - waited)
            self._breakdown.add("measure", waited)

    def yield_to_timing(self) -> None:
        """Let a waiting kernel be timed now.

        Raises:
            Stopped: the run is asked to stop.
            TimeUp: its seconds are used up.
        """
        self.check()
        if self._held is not None:
            self._leave()
            self._enter()

    def end_when(self, is_over: Callable[[], bool]) -> None:
        """From now on the run ends when this is true."""
        self._is_over = is_over

    @property
    def can_stop(self) -> bool:
        """Whether a wait has to call `check`, every `POLL_S`."""
        return self._should_stop is not None or self._is_over is not None

    def check(self) -> None:
        """Stop here if the run is asked to, or its time is up.

        Raises:
            Stopped, TimeUp: it is.
        """
        if self._should_stop is not None and self._should_stop():
            raise Stopped
        if self._is_over is not None and self._is_over():
            raise TimeUp

    def wait_for(self, future: futures.Future[Any], timeout_s: float = math.inf) -> None:
        """Wait until there is a result, or for so long.

        Raises:
            Stopped: the run is asked to stop.
            TimeUp: its seconds are used up.
        """
        end_s = time.monotonic() + timeout_s
        while not future.done() and time.monotonic() < end_s:
            futures.wait([future], POLL_S)
            self.check()

    def _enter(self) -> None:
        start = time.perf_counter()
        held = self._timing_lock.shared()
        try:
            held.__enter__()
            self._held = held
        finally:
            self._waited_s += time.perf_counter() - start

    def _leave(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(None, None, None)
