"""The newest events of jobs that are polled, encoded once for all clients.

Events are never changed, and their numbers have no gaps. So a window only fetches what came after
its end, and the events after a number are a slice of it. Events older than the window are read
from the database.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable

import anyio.to_thread

from server import errors
from server.cache import single_flight, visible_jobs
from server.database import database
from server.store import events as store_events
from server.store import rows

#: Events in a job's window.
LENGTH = 256
#: Jobs that have a window; the least recently used one is dropped first.
JOBS = 128


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event as clients get it: JSON."""

    seq: int
    type: str
    encoded: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """All events of a job after the number `since`."""

    since: int
    events: tuple[EncodedEvent, ...]

    @property
    def last_seq(self) -> int:
        """The number of the newest."""
        return self.since + len(self.events)

    def after(
        self, seq: int, limit: int, types: Collection[str] = ()
    ) -> list[EncodedEvent] | None:
        """Events after a number, oldest first; None if some of them are older than the window."""
        if seq < self.since:
            return None
        new = self.events[seq - self.since :]
        return [event for event in new if not types or event.type in types][:limit]

    def with_new(self, new: Iterable[EncodedEvent]) -> Window:
        """The window with newer events; the oldest ones leave it."""
        events = (*self.events, *new)
        n_old = max(0, len(events) - LENGTH)
        return Window(self.since + n_old, events[n_old:])


class RecentEvents:
    """The windows of all polled jobs; lives in one event loop.

    Args:
        db: the database.
        encode: an event as clients get it.
        ttl_s: how old a window may be.
        invalidate: called with a job before clients get new events of it.
    """

    def __init__(
        self,
        db: database.Database,
        encode: Callable[[rows.Event], bytes],
        ttl_s: float,
        invalidate: Callable[[int], None],
    ) -> None:
        self._db, self._encode, self._invalidate = db, encode, invalidate
        self._reads: single_flight.SingleFlight[Window] = single_flight.SingleFlight(ttl_s)
        self._windows: collections.OrderedDict[int, Window] = collections.OrderedDict()

    async def of(self, job_id: visible_jobs.VisibleJob) -> Window:
        """The window of a job that the caller may see.

        Raises:
            NotFound: there is no such job.
        """
        return await self._reads.get(job_id, functools.partial(self._renew, job_id))

    def forget(self) -> None:
        """Read the database again before the next response."""
        self._reads.forget()

    async def _renew(self, job_id: int) -> Window:
        before = self._windows.get(job_id)
        try:
            window = await anyio.to_thread.run_sync(self._read, job_id, before)
        except errors.NotFound:
            self._windows.pop(job_id, None)
            raise
        if before is None or window.last_seq > before.last_seq:
            self._invalidate(job_id)
        newest = self._windows.get(job_id)
        if newest is None or newest.last_seq <= window.last_seq:
            self._windows[job_id] = window
        self._windows.move_to_end(job_id)
        while len(self._windows) > JOBS:
            self._windows.popitem(last=False)
        return window

    def _read(self, job_id: int, before: Window | None) -> Window:
        with self._db.read() as tx:
            last = store_events.last(tx, job_id)
            if last is None:
                raise errors.NotFound(f"there is no job {job_id}")
            if before is None or last - before.last_seq > LENGTH:
                before = Window(max(0, last - LENGTH), ())
            new = store_events.after(tx, job_id, before.last_seq) if last > before.last_seq else []
        return before.with_new(EncodedEvent(e.seq, e.type, self._encode(e)) for e in new)
