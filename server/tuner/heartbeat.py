"""A tuner's heartbeat: renews its lease and its worker row from a thread of its own.

The thread learns what the tuner is to do (`Watch.order`). A beat that fails is tried again until
the lease must have expired; then the watch says that the lease is lost, by the local clock alone,
so a tuner that cannot reach the database stops working before another one begins. That holds
even if the thread itself should end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

import sqlalchemy as sa

from server import states
from server.database import database
from server.store import leases, workers

_log = logging.getLogger(__name__)

#: Share of the lease after which a tuner that could not renew it gives up.
SAFE_SHARE = 0.9


class Watch:
    """One lease; read by the tuner's thread, written by the heart's."""

    def __init__(self, fence: leases.Fence, lease_s: float) -> None:
        self.fence = fence
        self._lease_s = lease_s
        self._order = states.Order.CONTINUE
        self._deadline_s = time.monotonic() + SAFE_SHARE * lease_s

    @property
    def order(self) -> states.Order:
        """What the tuner is to do."""
        if time.monotonic() > self._deadline_s:
            return states.Order.LEASE_LOST
        return self._order

    def renewed(self, order: states.Order, sent_s: float) -> None:
        """A beat sent at that time of the monotonic clock was answered."""
        self._order = order
        if order is not states.Order.LEASE_LOST:
            self._deadline_s = sent_s + SAFE_SHARE * self._lease_s


class Heart:
    """The thread; `close` ends it."""

    def __init__(
        self, db: database.Database, worker_id: int, beat_s: float, lease_s: float
    ) -> None:
        self._db, self._worker_id = db, worker_id
        self._beat_s, self._lease_s = beat_s, lease_s
        self._watch: Watch | None = None
        self._beating = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watch(self, fence: leases.Fence) -> Iterator[Watch]:
        """Keep a lease while the block runs, and until the beat under way is over.

        A beat that waits for the job to be let go locks its row for a moment, although it finds
        the lease gone (PostgreSQL does so), and whoever looks for work then passes the job over.
        """
        watch = Watch(fence, self._lease_s)
        self._watch = watch
        try:
            yield watch
        finally:
            with self._beating:
                self._watch = None

    def close(self) -> None:
        """Stop beating."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = self._beat_s
        while not self._closed.wait(wait_s):
            try:
                self._beat()
                wait_s = self._beat_s
            except sa.exc.SQLAlchemyError as error:
                wait_s = min(1.0, self._beat_s)
                _log.warning("a heartbeat failed: %s", error, extra={"action": "beat_failed"})

    def _beat(self) -> None:
        with self._beating:
            watch, sent_s = self._watch, time.monotonic()
            with self._db.write() as tx:
                if watch is not None:
                    order = leases.beat(tx, watch.fence, self._lease_s)
                workers.beat(tx, self._worker_id)
            if watch is not None:
                watch.renewed(order, sent_s)
