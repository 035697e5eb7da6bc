"""A tuner's heartbeat: renews its lease and its worker row from a thread of its own.

Each beat brings the instruction for the tuner (`LeaseMonitor.instruction`). A beat that fails is
repeated until the lease must have expired; then the monitor says that the lease is lost, by the
local clock alone, so a tuner that cannot reach the database stops working before another one
begins. That holds even if the thread itself ends.
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


class LeaseMonitor:
    """One lease; read by the tuner's thread, written by the heartbeat's."""

    def __init__(self, fence: leases.Fence, lease_s: float) -> None:
        self.fence = fence
        self._lease_s = lease_s
        self._instruction = states.Instruction.CONTINUE
        self._deadline_s = time.monotonic() + SAFE_SHARE * lease_s

    @property
    def instruction(self) -> states.Instruction:
        """What the tuner has to do."""
        if time.monotonic() > self._deadline_s:
            return states.Instruction.LEASE_LOST
        return self._instruction

    def renewed(self, instruction: states.Instruction, sent_s: float) -> None:
        """A beat that was sent at that time of the monotonic clock succeeded."""
        self._instruction = instruction
        if instruction is not states.Instruction.LEASE_LOST:
            self._deadline_s = sent_s + SAFE_SHARE * self._lease_s


class Heartbeat:
    """The thread; `close` ends it."""

    def __init__(
        self, db: database.Database, worker_id: int, beat_s: float, lease_s: float
    ) -> None:
        self._db, self._worker_id = db, worker_id
        self._beat_s, self._lease_s = beat_s, lease_s
        self._monitor: LeaseMonitor | None = None
        self._beating = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def monitor(self, fence: leases.Fence) -> Iterator[LeaseMonitor]:
        """Keep a lease while the block runs, and until the beat under way is over.

        A beat that waits until the job is released locks its row for a moment, although the lease
        is gone by then (PostgreSQL does so), and a claim at that moment would skip the job.
        """
        monitor = LeaseMonitor(fence, self._lease_s)
        self._monitor = monitor
        try:
            yield monitor
        finally:
            with self._beating:
                self._monitor = None

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
            monitor, sent_s = self._monitor, time.monotonic()
            with self._db.write() as tx:
                if monitor is not None:
                    instruction = leases.beat(tx, monitor.fence, self._lease_s)
                workers.beat(tx, self._worker_id)
            if monitor is not None:
                monitor.renewed(instruction, sent_s)
