"""The newest events of jobs that are polled, encoded once for all who ask.

Events are never changed, and their numbers have no gaps. So a tail only asks for what came after
its end, and the events after a number are a slice of it. Who asks for older ones than a tail has
is for the database.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable

import anyio.to_thread

from server import errors
from server.cache import single_flight
from server.database import database
from server.store import events, rows

#: Events of a job that are kept.
LENGTH = 256
#: Jobs whose events are kept; the ones that nobody asks for go first.
JOBS = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """An event as clients get it: JSON."""

    seq: int
    type: str
    encoded: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Tail:
    """All events of a job after the number `since`."""

    since: int
    told: tuple[Told, ...]

    @property
    def last_seq(self) -> int:
        """The number of the newest."""
        return self.since + len(self.told)

    def after(self, seq: int, limit: int, types: Collection[str] = ()) -> list[Told] | None:
        """Events after a number, oldest first; None if some of them are older than the tail."""
        if seq < self.since:
            return None
        new = self.told[seq - self.since :]
        return [one for one in new if not types or one.type in types][:limit]

    def with_new(self, new: Iterable[Told]) -> Tail:
        """The tail with what came since."""
        told = (*self.told, *new)
        n_old = max(0, len(told) - LENGTH)
        return Tail(self.since + n_old, told[n_old:])


class Tails:
    """Lives in one event loop.

    Args:
        db: the database.
        encode: an event as clients get it.
        keep_s: how old a tail may be.
        told: called with a job before clients are told of new events of it.
    """

    def __init__(
        self,
        db: database.Database,
        encode: Callable[[rows.Event], bytes],
        keep_s: float,
        told: Callable[[int], None],
    ) -> None:
        self._db, self._encode, self._told = db, encode, told
        self._looks: single_flight.Shared[Tail] = single_flight.Shared(keep_s)
        self._kept: collections.OrderedDict[int, Tail] = collections.OrderedDict()

    async def of(self, job_id: int) -> Tail:
        """The tail of a job.

        Raises:
            NotFound: there is no such job.
        """
        return await self._looks.get(job_id, functools.partial(self._renew, job_id))

    def forget(self) -> None:
        """Look again before the next answer."""
        self._looks.forget()

    async def _renew(self, job_id: int) -> Tail:
        before = self._kept.get(job_id)
        try:
            tail = await anyio.to_thread.run_sync(self._look, job_id, before)
        except errors.NotFound:
            self._kept.pop(job_id, None)
            raise
        if before is None or tail.last_seq > before.last_seq:
            self._told(job_id)
        newest = self._kept.get(job_id)
        if newest is None or newest.last_seq <= tail.last_seq:
            self._kept[job_id] = tail
        self._kept.move_to_end(job_id)
        while len(self._kept) > JOBS:
            self._kept.popitem(last=False)
        return tail

    def _look(self, job_id: int, before: Tail | None) -> Tail:
        with self._db.read() as tx:
            last = events.last(tx, job_id)
            if last is None:
                raise errors.NotFound(f"there is no job {job_id}")
            if before is None or last - before.last_seq > LENGTH:
                before = Tail(max(0, last - LENGTH), ())
            new = events.after(tx, job_id, before.last_seq) if last > before.last_seq else []
        return before.with_new(Told(one.seq, one.type, self._encode(one)) for one in new)
