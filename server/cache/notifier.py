"""Wakes waiting streams when their job has new events: one query a tick for all of them.

Any number of open streams costs one small query every `every_s` seconds, and none while nobody
waits; streams of one job that are woken together share what they then read
(`server.cache.single_flight`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping

import anyio
import anyio.to_thread
import sqlalchemy as sa

_log = logging.getLogger(__name__)

#: The newest sequence number of each job that exists.
LastSeqs = Callable[[Collection[int]], Mapping[int, int]]


class Notifier:
    """Lives in one event loop; `run` must be running in it."""

    def __init__(self, last_seqs: LastSeqs, every_s: float = 0.25) -> None:
        self._last_seqs, self._every_s = last_seqs, every_s
        #: by job: a waiting stream, and the newest event that it has sent
        self._waiting: dict[int, dict[asyncio.Future[bool], int]] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def newer(self, job_id: int, seq: int, timeout_s: float) -> bool:
        """Whether within the time the job has events after `seq`, or is gone."""
        if self._closed:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, {})[future] = seq
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._forget(job_id, future)

    @property
    def is_closed(self) -> bool:
        """Whether streams should end."""
        return self._closed

    async def run(self) -> None:
        """Query until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._every_s)
            if self._waiting:
                await self._tick()

    def close(self) -> None:
        """Wake all streams: the application ends."""
        self._closed = True
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
            _log.warning("cannot read new events: %s", error, extra={"action": "notify_failed"})
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
