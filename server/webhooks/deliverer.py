"""The loop of an API server that sends the notifications that are due.

Several servers share the work by leases. A server that dies leaves its leases to expire, and
another sends again: receivers may get a notification twice, with the same event id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
import sqlalchemy as sa
from anyio import abc
from sqlalchemy import orm

from server.database import database
from server.store import webhooks
from server.webhooks import sender as senders

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Notifications that are sent at the same time.
AT_ONCE = 32
#: A lease outlives the longest try.
LEASE_S = 3 * senders.TRY_S

#: Tries of a notification; the last comes about five hours after the first.
MAX_ATTEMPTS = 12
_FIRST_WAIT_S, _LONGEST_WAIT_S = 10.0, 2 * 3600.0

#: Ended notifications are listed so long.
KEEP_S = 30 * 86_400.0
_FORGET_EVERY_S = 3600.0


def retry_after_s(attempts: int) -> float | None:
    """How long to wait after so many tries; None: no more."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (attempts - 1))


class Deliverer:
    """Lives in one event loop; `run` must be running in it."""

    def __init__(
        self,
        db: database.Database,
        sender: senders.Sender,
        every_s: float = 1.0,
        lease_s: float = LEASE_S,
    ) -> None:
        self._db, self._sender = db, sender
        self._every_s, self._lease_s = every_s, lease_s
        self._n_sending = 0
        self._sent = asyncio.Event()

    async def run(self) -> None:
        """Send until cancelled."""
        loop = asyncio.get_running_loop()
        forget_at_s = loop.time()
        async with anyio.create_task_group() as group:
            while True:
                self._sent.clear()
                try:
                    await self._start_due(group)
                    if loop.time() >= forget_at_s:
                        await self._write(lambda tx: webhooks.forget_old(tx, KEEP_S))
                        forget_at_s = loop.time() + _FORGET_EVERY_S
                except sa.exc.SQLAlchemyError as error:
                    _log.warning("cannot deliver: %s", error, extra={"action": "deliver_failed"})
                with anyio.move_on_after(self._every_s):
                    await self._sent.wait()

    async def send_due(self) -> int:
        """Send what is due now, the oldest of each webhook; how many there were."""
        async with anyio.create_task_group() as group:
            count = await self._start_due(group)
        return count

    async def _start_due(self, group: abc.TaskGroup) -> int:
        """Begin to send as many as may be under way."""
        n_free = AT_ONCE - self._n_sending
        if n_free == 0 or not await anyio.to_thread.run_sync(self._any_due):
            return 0
        due = await self._write(lambda tx: webhooks.lease(tx, n_free, self._lease_s))
        self._n_sending += len(due)
        for each in due:
            group.start_soon(self._send, each)
        return len(due)

    async def _send(self, due: webhooks.Due) -> None:
        try:
            reply = await self._sender.send(due)
            wait_s = retry_after_s(due.attempts)
            await self._write(lambda tx: webhooks.note(tx, due, reply, wait_s))
        except sa.exc.SQLAlchemyError as error:  # its lease expires, and it is sent again
            _log.warning("cannot note a delivery: %s", error, extra={"action": "deliver_failed"})
        else:
            if not reply.is_accepted and wait_s is None:
                _log.warning(
                    "notification %d was never accepted", due.id, extra={"action": "deliver_dead"}
                )
        finally:
            self._n_sending -= 1
            self._sent.set()

    def _any_due(self) -> bool:
        with self._db.read() as tx:
            return webhooks.any_due(tx)

    async def _write(self, verb: Callable[[orm.Session], T]) -> T:
        def write() -> T:
            with self._db.write() as tx:
                return verb(tx)

        return await anyio.to_thread.run_sync(write)
