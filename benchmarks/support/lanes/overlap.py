"""Shapes in two lanes: while the libraries of a shape are prepared, it is tuned.

    tuning       tune 1 | tune 2      | tune 3 ...
    libraries    prepare 1 | time 1 | prepare 2 ... | time 2 ...

A shape's libraries are timed when it is tuned and they are prepared. Tuning is at most `AHEAD`
shapes ahead, so that little is begun that a run short of time does not end: a shape that is begun
is finished, whatever the time. What fails costs its shape alone.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.support.lanes import lane

#: Strategies of the lane that tunes.
TUNING = ("felix", "first")
#: Shapes that are tuned and whose libraries are not timed yet, and the one that is being tuned.
AHEAD = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What is missing of a shape: requests of its tuning by label, of preparing and of timing."""

    name: str
    tuning: dict[str, lane.Request]
    #: Label, request to prepare and request to time; None: there is nothing to time.
    libraries: tuple[str, lane.Request, lane.Request] | None = None


@dataclasses.dataclass(slots=True)
class _Begun:
    shape: Shape
    tuned: threading.Event = dataclasses.field(default_factory=threading.Event)
    failed: bool = False


class Overlap:
    """A run of two lanes.

    Args:
        tuning: does requests of `Shape.tuning`.
        libraries: does those of `Shape.libraries`.
        say: is called with what is done next.
        ended: is called when a shape has ended.
    """

    def __init__(
        self,
        tuning: lane.Lane,
        libraries: lane.Lane,
        say: Callable[[str], None],
        ended: Callable[[], object],
    ) -> None:
        self._tuning, self._libraries, self._say, self._ended = tuning, libraries, say, ended
        self._begun: queue.SimpleQueue[_Begun | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._stopped = threading.Event()
        #: Labels of requests that failed.
        self.failed: list[str] = []

    def run(self, shapes: Sequence[Shape], limit_s: float | None = None) -> bool:
        """Do shapes in order; begin none after `limit_s` seconds. Whether all were begun."""
        others = threading.Thread(target=self._time_libraries)
        others.start()
        try:
            return self._tune(shapes, limit_s)
        except BaseException:
            self._stopped.set()
            raise
        finally:
            self._begun.put(None)
            self._tuning.close()
            others.join()
            self._libraries.close()

    def _tune(self, shapes: Sequence[Shape], limit_s: float | None) -> bool:
        started = time.monotonic()
        for shape in shapes:
            self._room.acquire()
            if limit_s is not None and time.monotonic() - started > limit_s:
                return False
            begun = _Begun(shape)
            self._begun.put(begun)
            try:
                for label, request in shape.tuning.items():
                    if not begun.failed:
                        begun.failed = not self._done(self._tuning, label, "tuning", request)
            finally:
                begun.tuned.set()
        return True

    def _time_libraries(self) -> None:
        while (begun := self._begun.get()) is not None:
            if begun.shape.libraries is not None and not self._stopped.is_set():
                self._time(begun, *begun.shape.libraries)
            begun.tuned.wait()
            self._ended()
            self._room.release()

    def _time(
        self, begun: _Begun, label: str, prepare: lane.Request, timing: lane.Request
    ) -> None:
        if not self._done(self._libraries, label, "preparing", prepare):
            return
        begun.tuned.wait()
        if begun.failed:
            self.failed.append(label)  # programs are missing
        elif not self._stopped.is_set():
            self._done(self._libraries, label, "timing", timing)

    def _done(self, by: lane.Lane, label: str, what: str, request: lane.Request) -> bool:
        self._say(f"{label}: {what} ...")
        done = by.run(request)
        if not done:
            self._say(f"{label}: failed, see {request['log']}")
            self.failed.append(label)
        return done
