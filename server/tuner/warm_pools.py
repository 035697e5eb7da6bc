"""Measuring pools that outlive a job: started before there is one, shared by jobs of a target.

A pool costs seconds to start (its fork server imports TVM), and the first point of a curve
should not wait for that.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from felix import errors, target, workloads
from felix.builder.cuda import reference
from felix.measure import readings, staged
from felix.measure.measurer import Measurer
from felix.runner import protocol
from felix.target import cpu

if TYPE_CHECKING:
    from felix.builder import payload
    from felix.measure import locks
    from felix.task import Task

Future = concurrent.futures.Future[protocol.Measurement]

#: Pools at a time; each is a fork server and idle workers.
MAX_POOLS = 2
#: Tasks after which a pool is replaced: it stores files of each.
MAX_TASKS = 200
#: How long workers that a stopped run left behind may take to die, in seconds.
SETTLE_S = 1.0
#: How long nobody may be there to measure before a job is put back, in seconds.
LOST_S = 20.0


class Pools:
    """Pools by target; used by one thread.

    Args:
        make: makes a pool for a task's target.
    """

    def __init__(self, make: Callable[[Task], staged.StagedPool]) -> None:
        self._make = make
        self._pools: dict[str, SharedPool] = {}

    @property
    def lost(self) -> str | None:
        """Why nothing can be measured, for longer than a moment; None if it can."""
        return next((lost for pool in self._pools.values() if (lost := pool.lost)), None)

    def conditions(self) -> list[readings.Condition]:
        """How each device is."""
        return readings.merged(
            each for pool in list(self._pools.values()) for each in pool.staged.conditions()
        )

    def warm(self, text: str) -> dict[str, str | None]:
        """Start the pool of a target, and let each worker do something: what that shows.

        Returns:
            `fault`: why nothing can be measured there, None if it can; `unconfined`: why clients'
            programs run in a process that is not confined, None if it is.
        """
        task = workloads.gemm(16, 16, 16, target=text)
        mod = task.mod if task.target.kind.name == "llvm" else reference.scheduled(task.mod)
        try:
            pool = self.take(task)
        except errors.MeasureError as error:
            return {"fault": str(error), "unconfined": None}
        measured = pool.for_task(task).measure([mod] * cpu.available_cores())
        fault = None if any(each.ok for each in measured) else measured[0].message
        return {"fault": fault, "unconfined": pool.staged.unconfined}

    def take(self, task: Task) -> SharedPool:
        """A working pool for a task's target."""
        key = target.describe(task.target)
        pool = self._pools.pop(key, None)
        if pool is not None and not pool.is_usable():
            pool.shut()
            pool = None
        while len(self._pools) >= MAX_POOLS:
            self._pools.pop(next(iter(self._pools))).shut()
        self._pools[key] = pool or SharedPool(self._make(task))
        return self._pools[key]

    def close(self) -> None:
        """End all processes."""
        while self._pools:
            self._pools.popitem()[1].shut()


class SharedPool:
    """A `felix.tuning.options.Pool` whose `close` ends a job's candidates, not the processes."""

    def __init__(self, pool: staged.StagedPool) -> None:
        self.staged = pool
        self._futures: set[Future] = set()
        self._n_tasks = 0
        self._had_trouble = False
        self._lost_since_s: float | None = None

    @property
    def timing_lock(self) -> locks.ReadWriteLock:
        """Held while a candidate is timed."""
        return self.staged.timing_lock

    @property
    def n_devices(self) -> int:
        """Candidates that may be timed at a time."""
        return self.staged.n_devices

    @property
    def lost(self) -> str | None:
        """Why nothing can be measured, once that holds for `LOST_S`; to be asked repeatedly."""
        lost = self.staged.lost
        if lost is None:
            self._lost_since_s = None
            return None
        self._lost_since_s = self._lost_since_s or time.monotonic()
        return lost if time.monotonic() - self._lost_since_s > LOST_S else None

    def for_task(self, task: Task) -> Measurer:
        """The measurer of one task."""
        self._n_tasks += 1
        return _TrackedMeasurer(self.staged.for_task(task), self._track)

    def is_usable(self) -> bool:
        """Whether the next job may have this pool."""
        is_spent = self._had_trouble or self._n_tasks >= MAX_TASKS
        return self.staged.is_alive and self.staged.lost is None and not is_spent

    def close(self) -> None:
        """The job is over: cancel what waits, end what runs."""
        futures, self._futures = self._futures, set()  # a cancelled future calls `_completed`
        left = [future for future in futures if not future.cancel()]
        if not self.staged.is_idle:
            self.staged.interrupt()
        done = concurrent.futures.wait(left, SETTLE_S)
        self._had_trouble = self._had_trouble or bool(done.not_done)

    def shut(self) -> None:
        """End the processes."""
        self.staged.close()

    def _track(self, future: Future) -> None:
        self._futures.add(future)
        future.add_done_callback(self._completed)

    def _completed(self, future: Future) -> None:
        if future not in self._futures:  # of a job that is over
            return
        self._futures.discard(future)
        if future.cancelled():
            return
        if future.result().error is protocol.ErrorClass.INFRASTRUCTURE:
            self._had_trouble = True  # the next job gets fresh processes


class _TrackedMeasurer(Measurer):
    """A measurer whose futures the pool knows."""

    def __init__(self, measurer: Measurer, track: Callable[[Future], None]) -> None:
        self._measurer, self._track = measurer, track

    def submit(self, program: payload.Buildable, thorough: bool = False) -> Future:
        """Queue one program."""
        future = self._measurer.submit(program, thorough)
        self._track(future)
        return future

    def close(self) -> None:
        """Nothing to end: the workers are the pool's."""
