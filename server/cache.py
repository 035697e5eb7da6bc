"""What the requests to one API server share: responses, who may see which job, newest events."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, NewType, TypeVar

import anyio
import anyio.to_thread
import sqlalchemy as sa

from server import errors, logs
from server.database import database, models, visibility
from server.store import events as store_events
from server.store import rows, statements

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Values by key; lives in one event loop.

    Fifty clients that watch a job send the same request fifty times in two seconds. A caller
    that comes while a value is computed, or within `ttl_s` of when that began, gets that value.
    A change by this process makes it forget, so that a client reads what it wrote; changes by
    other processes are visible `ttl_s` later at the latest.

    Args:
        ttl_s: how long a value is valid, from when its computation began.
    """

    def __init__(self, ttl_s: float = 0.2) -> None:
        self._ttl_s = ttl_s
        self._tasks: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[T]]) -> T:
        """The value of a key: cached, being computed by another caller, or computed now."""
        task = self._tasks.get(key)
        if task is None:
            began_s = asyncio.get_running_loop().time()
            task = asyncio.ensure_future(compute())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._done(key, done, began_s))
        return await asyncio.shield(task)  # a caller that is cancelled does not cancel the others

    def forget(self, matches: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Something was changed: no caller gets the values of these keys any more."""
        for key in [key for key in self._tasks if matches(key)]:
            del self._tasks[key]

    def _done(self, key: Hashable, task: asyncio.Future[T], began_s: float) -> None:
        if task.cancelled() or task.exception() is not None:  # errors are raised, not cached
            self._drop(key, task)
        else:
            loop = asyncio.get_running_loop()
            loop.call_at(began_s + self._ttl_s, self._drop, key, task)

    def _drop(self, key: Hashable, task: asyncio.Future[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


#: The number of a job that the caller may see; only `VisibleJobs` makes them.
VisibleJob = NewType("VisibleJob", int)

#: Jobs that are remembered; the least recently used one is dropped first.
KNOWN_JOBS = 4096


class VisibleJobs:
    """Lives in one event loop.

    A job never changes its project, so the answer is read from the database once. Only a yes is
    remembered: a job of another project and one that was never made take the same query and give
    the same error.
    """

    def __init__(self, db: database.Database) -> None:
        self._db = db
        self._projects: collections.OrderedDict[int, str] = collections.OrderedDict()

    async def check(
        self, sees: visibility.Visibility, job_ids: Sequence[int]
    ) -> tuple[VisibleJob, ...]:
        """The same jobs, if all of them are visible.

        Raises:
            NotFound: one of them is not, or there is none of that number.
        """
        unknown = [number for number in job_ids if not self._is_known(sees, number)]
        if unknown:
            read = functools.partial(self._read, sees, unknown)
            projects = await anyio.to_thread.run_sync(read)
            for number in unknown:
                if number not in projects:
                    raise errors.NotFound(f"there is no job {number}")
            self._projects.update(projects)
            while len(self._projects) > KNOWN_JOBS:
                self._projects.popitem(last=False)
        return tuple(VisibleJob(number) for number in job_ids)

    def _is_known(self, sees: visibility.Visibility, job_id: int) -> bool:
        project = self._projects.get(job_id)
        if project is None:
            return False
        self._projects.move_to_end(job_id)
        return sees.project in (None, project)

    def _read(self, sees: visibility.Visibility, job_ids: Sequence[int]) -> dict[int, str]:
        with self._db.read(sees) as tx:
            return statements.by_number(tx, models.Job.id, models.Job.project, job_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """What a response says, and of which jobs, all of which the caller may see."""

    what: Hashable
    job_ids: tuple[VisibleJob, ...]


class ResponseCache(SingleFlight[bytes]):
    """Bodies by `Query`; lives in one event loop.

    A response is never older than what its client knows of the job: a client that learns from a
    stream that its job has ended, and then requests the job, must not get what was cached
    before. So whatever delivers events of a job invalidates the responses about it.
    """

    def invalidate(self, job_id: int) -> None:
        """Clients are about to learn of new events of a job: forget the responses about it."""
        self.forget(lambda query: isinstance(query, Query) and job_id in query.job_ids)


#: Events in a job's window.
LENGTH = 256
#: Jobs that have a window; the least recently used one is dropped first.
POLLED_JOBS = 128


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

    Events are never changed, and their numbers have no gaps. So a window only fetches what came
    after its end, and the events after a number are a slice of it. Older events are read from
    the database.

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
        self._reads: SingleFlight[Window] = SingleFlight(ttl_s)
        self._windows: collections.OrderedDict[int, Window] = collections.OrderedDict()

    async def of(self, job_id: VisibleJob) -> Window:
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
        while len(self._windows) > POLLED_JOBS:
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


_log = logs.of(__name__)

#: The newest sequence number of each job that exists.
LastSeqs = Callable[[Collection[int]], Mapping[int, int]]


class Notifier:
    """Lives in one event loop; `run` must be running in it.

    Any number of open streams costs one small query every `every_s` seconds, and none while
    nobody waits; streams of one job that are woken together share what they then read
    (`SingleFlight`).
    """

    def __init__(self, last_seqs: LastSeqs, every_s: float = 0.25) -> None:
        self._last_seqs, self._every_s = last_seqs, every_s
        #: by job: a waiting stream, and the newest event that it has sent
        self._waiting: dict[int, dict[asyncio.Future[bool], int]] = {}
        #: whether streams should end
        self.is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def newer(self, job_id: int, seq: int, timeout_s: float) -> bool:
        """Whether within the time the job has events after `seq`, or is gone."""
        if self.is_closed:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, {})[future] = seq
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._forget(job_id, future)

    async def run(self) -> None:
        """Query until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._every_s)
            if self._waiting:
                await self._tick()

    def close(self) -> None:
        """Wake all streams: the application ends."""
        self.is_closed = True
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_result(False)

    def close_soon(self) -> None:
        """`close`, from another thread or a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.close)

    async def _tick(self) -> None:
        try:
            newest = await anyio.to_thread.run_sync(self._last_seqs, list(self._waiting))
        except sa.exc.SQLAlchemyError as error:
            _log.warning("cannot read new events: %s", error, action="notify_failed")
            return
        for job_id, futures in self._waiting.items():
            last = newest.get(job_id)
            for future, seq in futures.items():
                if not future.done() and (last is None or last > seq):
                    future.set_result(True)

    def _forget(self, job_id: int, future: asyncio.Future[bool]) -> None:
        with contextlib.suppress(KeyError):
            self._waiting[job_id].pop(future, None)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
