"""Which device runs what: where built candidates wait until a run worker is free.

A task has a *home* device. Its reference is made there first, its finals (`thorough`) run
nowhere else, and its latencies are those of that device. A device that has nothing to do helps
another: it takes a candidate of a home that has more than one waiting. What it measures counts
after calibration only (`stages.device_stage`), since no two cards are equally fast.

A device that is taken out gives what waits for it, and its tasks, to the others. So does one that
is away for a while; if it is the last one, what waits stays until it or a new one is there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TypeAlias

from felix.measure.pool import candidates

#: What a device is given: a candidate, or a task whose reference it is to make.
Item: TypeAlias = candidates.Candidate | candidates.PoolTask


class Dispatch:
    """Queues of devices 0 to n - 1; used by all threads of a pool."""

    def __init__(self, n_devices: int) -> None:
        self._changed = threading.Condition()
        self._waiting: list[deque[Item]] = [deque() for _ in range(n_devices)]
        self._n_tasks = [0] * n_devices
        self._faults: dict[int, str] = {}
        self._away: dict[int, str] = {}
        self._closed = False
        #: how often the queues were drained
        self.n_drains = 0

    def add(self) -> int:
        """One more device, without tasks; its number."""
        with self._changed:
            self._waiting.append(deque())
            self._n_tasks.append(0)
            index = len(self._waiting) - 1
            for away in self._away:  # nobody else could have taken what waits for them
                self._move(away, [index])
            self._changed.notify_all()
            return index

    def home_of_next_task(self) -> int:
        """The device with the fewest tasks of those that are not taken out."""
        with self._changed:
            homes = self._usable() or [each for each in self._away if each not in self._faults]
            home = min(homes, key=lambda index: (self._n_tasks[index], index))
            self._n_tasks[home] += 1
            return home

    def put(self, item: Item) -> None:
        """Queue a candidate, or a task whose reference is to be made, at the task's home."""
        with self._changed:
            task, usable = _task(item), self._usable()
            if usable and task.home not in usable:
                task.move_to(usable[0])
            self._waiting[task.home].append(item)
            self._changed.notify_all()

    def take(self, device: int, timeout_s: float | None = None) -> Item | None:
        """What the device does next, once there is something.

        None: the pool is closed (`is_closed`), or there was nothing for so long.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._closed:
                    return None
                if self._waiting[device]:
                    return self._waiting[device].popleft()
                helped = self._helped(device)
                if helped is not None:
                    return helped
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def await_close(self, timeout_s: float) -> bool:
        """Wait for so long; whether the pool was closed meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def retire(self, device: int, fault: str) -> bool:
        """Take a device out for a reason; False if it is the last, which stays."""
        with self._changed:
            if len(self._usable()) == 1:
                return False
            self._faults[device] = fault
            self._move(device, self._usable())
            self._changed.notify_all()
            return True

    def send_away(self, device: int, why: str) -> None:
        """A device is out of reach for now; others take what waits for it, if there are any."""
        with self._changed:
            self._away[device] = why
            if others := self._usable():
                self._move(device, others)
            self._changed.notify_all()

    def take_back(self, device: int) -> None:
        """A device that was away works again, and takes what has no other."""
        with self._changed:
            del self._away[device]
            for away in self._away:
                self._move(away, [device])
            self._changed.notify_all()

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
        with self._changed:
            if self._usable():
                return None
            reasons = [*self._away.values(), *self._faults.values()]
            return reasons[0] if reasons else "there is no device"

    @property
    def is_closed(self) -> bool:
        """Whether nothing is given out any more."""
        return self._closed

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
        with self._changed:
            self.n_drains += 1
            items = [item for waiting in self._waiting for item in waiting]
            for waiting in self._waiting:
                waiting.clear()
            return items

    def close(self) -> None:
        """End every `take` with None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take_more(self, device: int, limit: int) -> list[candidates.Candidate]:
        """Candidates that wait at the head of the device's own queue, at most its share of them.

        The share is that of one of the devices that may help, so that they have something to take.
        """
        taken: list[candidates.Candidate] = []
        with self._changed:
            waiting = self._waiting[device]
            share = min(limit, -(-len(waiting) // max(1, len(self._usable()))))
            while waiting and len(taken) < share:
                item = waiting[0]
                if not isinstance(item, candidates.Candidate):
                    break
                waiting.popleft()
                taken.append(item)
        return taken

    def _usable(self) -> list[int]:
        out = {*self._faults, *self._away}
        return [index for index in range(len(self._waiting)) if index not in out]

    def _move(self, device: int, others: list[int]) -> None:
        """Give what waits for a device, and the tasks it is about, to others."""
        moved = list(self._waiting[device])
        self._waiting[device].clear()
        for number, item in enumerate(moved):
            task = _task(item)
            if task.home == device:
                task.move_to(others[number % len(others)])
            self._waiting[task.home].append(item)

    def _helped(self, device: int) -> candidates.Candidate | None:
        """The oldest candidate of the fullest other queue that may run on the device as well."""
        for waiting in sorted(self._waiting, key=len, reverse=True):
            if len(waiting) < 2 or device not in self._usable():
                return None
            for item in waiting:
                if isinstance(item, candidates.Candidate) and item.may_run_on(device):
                    waiting.remove(item)
                    return item
        return None


def _task(item: Item) -> candidates.PoolTask:
    return item.task if isinstance(item, candidates.Candidate) else item
