"""Which device runs what: where built candidates wait until a run worker is free.

A task has a *primary* device. Its reference is run there first, its thorough measurements run
nowhere else, and its latencies are those of that device. A device that has nothing to do helps
another: it takes candidates of a primary that has more than one waiting. What it measures counts
after calibration only (`device_thread`), since no two cards are equally fast.

A device sleeps until there is something for it. What comes wakes one device, and a device that
helps wakes the next one if it leaves something, so that a candidate costs the same however many
devices there are.

A device that is taken out gives what waits for it, and its tasks, to the others. So does one that
is away for a while; if it is the last one, what waits stays until it or a new one is there.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from felix.measure import work

#: What a device is given: a candidate, or a task whose reference it is to run.
Item: TypeAlias = work.QueuedProgram | work.PoolTask


class Dispatch:
    """Queues of devices 0 to n - 1; used by all threads of a pool."""

    def __init__(self, n_devices: int) -> None:
        self._lock = threading.RLock()
        #: one for each device, to wake it by
        self._awake = [threading.Condition(self._lock) for _ in range(n_devices)]
        #: devices that sleep, in the order they fell asleep
        self._idle: dict[int, None] = {}
        self._waiting: list[deque[Item]] = [deque() for _ in range(n_devices)]
        self._n_tasks = [0] * n_devices
        self._faults: dict[int, str] = {}
        self._away: dict[int, str] = {}
        self._closing = threading.Event()
        #: how often the queues were drained
        self.n_drains = 0

    def add(self) -> int:
        """One more device, without tasks; its number."""
        with self._lock:
            self._waiting.append(deque())
            self._awake.append(threading.Condition(self._lock))
            self._n_tasks.append(0)
            index = len(self._waiting) - 1
            for away in self._away:  # nobody else could have taken what waits for them
                self._move(away, [index])
            self._wake_all()
            return index

    def device_of_next_task(self) -> int:
        """The device with the fewest tasks of those that are not taken out."""
        with self._lock:
            usable = self._usable() or [each for each in self._away if each not in self._faults]
            primary = min(usable, key=lambda index: (self._n_tasks[index], index))
            self._n_tasks[primary] += 1
            return primary

    def put(self, item: Item) -> None:
        """Queue a candidate, or a task whose reference is to be run, at the task's primary."""
        with self._lock:
            task, usable = _task(item), self._usable()
            if usable and task.primary not in usable:
                task.move_to(usable[0])
            self._waiting[task.primary].append(item)
            if task.primary in self._idle:
                self._wake(task.primary)
            else:
                self._wake_helper(self._waiting[task.primary])

    def take(self, device: int, timeout_s: float | None = None) -> Item | None:
        """What the device does next, once there is something.

        None: the pool is closed (`is_closed`), or there was nothing for so long.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while True:
                if self.is_closed:
                    return None
                if self._waiting[device]:
                    item = self._waiting[device].popleft()
                    self._wake_helper(self._waiting[device])  # one may be timed by now
                    return item
                helped = self._helped(device, 1)
                if helped:
                    return helped[0]
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._idle[device] = None
                self._awake[device].wait(left_s)
                self._idle.pop(device, None)

    def await_close(self, timeout_s: float) -> bool:
        """Wait for so long; whether the pool was closed meanwhile."""
        return self._closing.wait(timeout_s)

    def retire(self, device: int, fault: str) -> bool:
        """Take a device out for a reason; False if it is the last, which stays."""
        with self._lock:
            if len(self._usable()) == 1:
                return False
            self._faults[device] = fault
            self._move(device, self._usable())
            self._wake_all()
            return True

    def send_away(self, device: int, why: str) -> None:
        """A device is out of reach for now; others take what waits for it, if there are any."""
        with self._lock:
            self._away[device] = why
            if others := self._usable():
                self._move(device, others)
            self._wake_all()

    def take_back(self, device: int) -> None:
        """A device that was away works again, and takes what has no other."""
        with self._lock:
            del self._away[device]
            for away in self._away:
                self._move(away, [device])
            self._wake_all()

    @property
    def away(self) -> dict[int, str]:
        """Devices that are out of reach for now, with the reason."""
        return dict(self._away)

    def n_waiting(self, device: int) -> int:
        """What waits for a device."""
        return len(self._waiting[device])

    @property
    def lost(self) -> str | None:
        """Why no device can take anything now; None if one can."""
        with self._lock:
            if self._usable():
                return None
            reasons = [*self._away.values(), *self._faults.values()]
            return reasons[0] if reasons else "there is no device"

    @property
    def is_closed(self) -> bool:
        """Whether nothing is given out any more."""
        return self._closing.is_set()

    @property
    def faults(self) -> dict[int, str]:
        """Devices that were taken out, with the reason."""
        return dict(self._faults)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not any(self._waiting)

    def drain(self) -> list[Item]:
        """Everything that waits; the queues are empty then."""
        with self._lock:
            self.n_drains += 1
            items = [item for waiting in self._waiting for item in waiting]
            for waiting in self._waiting:
                waiting.clear()
            return items

    def close(self) -> None:
        """End every `take` with None."""
        with self._lock:
            self._closing.set()
            self._wake_all()

    def take_more(self, device: int, limit: int) -> list[work.QueuedProgram]:
        """Candidates to run with the one that was taken, at most the device's share of them.

        They wait at the head of its own queue; if that is empty, of one that it helps. The share
        is that of one of the devices that may help, so that the others have something to take.
        """
        taken: list[work.QueuedProgram] = []
        with self._lock:
            waiting = self._waiting[device]
            if not waiting:
                return self._helped(device, limit)
            share = min(limit, self._share(waiting))
            while waiting and len(taken) < share:
                item = waiting[0]
                if not isinstance(item, work.QueuedProgram):
                    break
                waiting.popleft()
                taken.append(item)
        return taken

    def _share(self, waiting: deque[Item]) -> int:
        return -(-len(waiting) // max(1, len(self._usable())))

    def _usable(self) -> list[int]:
        out = {*self._faults, *self._away}
        return [index for index in range(len(self._waiting)) if index not in out]

    def _move(self, device: int, others: list[int]) -> None:
        """Give what waits for a device, and the tasks it is about, to others."""
        moved = list(self._waiting[device])
        self._waiting[device].clear()
        for number, item in enumerate(moved):
            task = _task(item)
            if task.primary == device:
                task.move_to(others[number % len(others)])
            self._waiting[task.primary].append(item)

    def _helped(self, device: int, limit: int) -> list[work.QueuedProgram]:
        """The oldest candidates of the fullest other queue that may run on the device as well."""
        if device in self._faults or device in self._away:
            return []
        several = [waiting for waiting in self._waiting if len(waiting) > 1]
        for waiting in sorted(several, key=len, reverse=True):
            share = min(limit, self._share(waiting), len(waiting) - 1)
            helped = list(itertools.islice(_for_helper(waiting, device), share))
            for candidate in helped:
                waiting.remove(candidate)
            if helped:
                self._wake_helper(waiting)
                return helped
        return []

    def _wake_helper(self, waiting: deque[Item]) -> None:
        """Wake a device that may take something of a queue whose primary is busy."""
        if len(waiting) > 1:
            for device in self._idle:
                if next(_for_helper(waiting, device), None) is not None:
                    return self._wake(device)
        return None

    def _wake(self, device: int) -> None:
        self._idle.pop(device, None)
        self._awake[device].notify()

    def _wake_all(self) -> None:
        for device in list(self._idle):
            self._wake(device)


def _for_helper(waiting: deque[Item], device: int) -> Iterator[work.QueuedProgram]:
    """Candidates that a device may run whose primary is another one, the oldest first."""
    for item in waiting:
        if isinstance(item, work.QueuedProgram) and item.may_run_on(device):
            yield item


def _task(item: Item) -> work.PoolTask:
    return item.task if isinstance(item, work.QueuedProgram) else item
