"""A tuner's heartbeat: renews its lease and its worker row from a thread of its own.

Each beat brings the instruction for the tuner (`LeaseMonitor.instruction`). A beat that fails is
repeated until the lease must have expired; then the monitor says that the lease is lost, by the
local clock alone, so a tuner that cannot reach the database stops working before another one
begins. That holds even if the thread itself ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import sqlalchemy as sa

from server import logs, states
from server.database import database
from server.store import leases, tuners, turns

_log = logs.of(__name__)

#: Share of the lease after which a tuner that could not renew it gives up.
SAFE_SHARE = 0.9
#: Between two reports of the devices, in seconds.
REPORT_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What a tuner shares with other keys: whose job this is, what it could measure instead."""

    key_id: int | None
    target_keys: Collection[str]
    #: how long the job may stay before others are looked at, in seconds
    slice_s: float


class LeaseMonitor:
    """One lease; read by the tuner's thread, written by the heartbeat's."""

    def __init__(self, fence: leases.Fence, lease_s: float, sharing: Sharing) -> None:
        self.fence, self.sharing = fence, sharing
        self._lease_s = lease_s
        self._began_s = self._charged_s = time.monotonic()
        self._has_to_yield = False
        self._instruction = states.Instruction.CONTINUE
        self._deadline_s = time.monotonic() + SAFE_SHARE * lease_s

    @property
    def instruction(self) -> states.Instruction:
        """What the tuner has to do."""
        if time.monotonic() > self._deadline_s:
            return states.Instruction.LEASE_LOST
        if self._has_to_yield and self._instruction is states.Instruction.CONTINUE:
            return states.Instruction.YIELD
        return self._instruction

    @property
    def may_have_to_yield(self) -> bool:
        """Whether the slice is over, and nothing else ends the work."""
        is_over = time.monotonic() - self._began_s >= self.sharing.slice_s
        return is_over and self.instruction is states.Instruction.CONTINUE

    def yield_now(self) -> None:
        """It is another key's turn."""
        self._has_to_yield = True

    def take_charge_s(self) -> float:
        """Seconds of the tuner since the last call."""
        before_s, self._charged_s = self._charged_s, time.monotonic()
        return self._charged_s - before_s

    def renewed(self, instruction: states.Instruction, sent_s: float) -> None:
        """A beat that was sent at that time of the monotonic clock succeeded."""
        self._instruction = instruction
        if instruction is not states.Instruction.LEASE_LOST:
            self._deadline_s = sent_s + SAFE_SHARE * self._lease_s


class Heartbeat:
    """The thread; `close` ends it.

    Args:
        db: the database.
        worker_id: of the tuner, which was registered with the devices that it has now.
        beat_s: between two beats.
        lease_s: of a job.
        devices: says what the tuner can measure on; a change is told.
        reports: says how these devices are.
    """

    def __init__(
        self,
        db: database.Database,
        worker_id: int,
        beat_s: float,
        lease_s: float,
        devices: Callable[[], list[dict[str, Any]]],
        reports: Callable[[], list[tuners.Seen]],
    ) -> None:
        self._devices, self._told = devices, devices()
        self._reports, self._reported_s = reports, -math.inf
        self._db, self._worker_id = db, worker_id
        self._beat_s, self._lease_s = beat_s, lease_s
        self._monitor: LeaseMonitor | None = None
        self._beating = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def monitor(self, fence: leases.Fence, sharing: Sharing) -> Iterator[LeaseMonitor]:
        """Keep a lease while the block runs, and until the beat under way is over.

        By `sharing` the tuner's time is charged to the job's key, and the job yields to others.

        A beat that waits until the job is released locks its row for a moment, although the lease
        is gone by then (PostgreSQL does so), and a claim at that moment would skip the job.
        """
        monitor = LeaseMonitor(fence, self._lease_s, sharing)
        self._monitor = monitor
        try:
            yield monitor
        finally:
            with self._beating:
                self._monitor = None
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self._share(monitor)

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
                _log.warning("a heartbeat failed: %s", error, action="beat_failed")

    def _beat(self) -> None:
        with self._beating:
            monitor, sent_s = self._monitor, time.monotonic()
            with self._db.write() as tx:
                if monitor is not None:
                    instruction = leases.beat(tx, monitor.fence, self._lease_s)
                tuners.beat(tx, self._worker_id)
                if (devices := self._devices()) != self._told:
                    tuners.tell(tx, self._worker_id, devices)
            self._told = devices
            self._report()
            if monitor is not None:
                monitor.renewed(instruction, sent_s)
                self._share(monitor)

    def _report(self) -> None:
        """Write how the devices are, once in a while."""
        if time.monotonic() - self._reported_s < REPORT_S:
            return
        seen, self._reported_s = self._reports(), time.monotonic()
        with self._db.write() as tx:
            tuners.write_reports(tx, self._worker_id, seen)

    def _share(self, monitor: LeaseMonitor) -> None:
        """Charge the tuner's time to the job's key, and see whose turn it is."""
        sharing = monitor.sharing
        with self._db.write() as tx:
            turns.charge(tx, sharing.key_id, monitor.take_charge_s())
            if monitor.may_have_to_yield and turns.is_over(
                tx, monitor.fence.job_id, sharing.target_keys, sharing.slice_s
            ):
                monitor.yield_now()
