"""References between builders and devices: each is built once, and its candidates wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from felix.measure.pool import candidates
from felix.measure.pool.stages import build_stage, dispatch


class References:
    """Hands on what builders have made; used by all threads of a pool.

    Args:
        build: queues a task whose reference is to be built.
        hand_on: takes a task that has its reference or will have none, then its candidates.
    """

    def __init__(
        self,
        build: Callable[[candidates.PoolTask], None],
        hand_on: Callable[[dispatch.Item], None],
    ) -> None:
        self._build, self._hand_on = build, hand_on
        self._lock = threading.Lock()
        #: tasks that builders have or will get, and tasks that were handed on
        self._asked: set[candidates.PoolTask] = set()
        self._ready: set[candidates.PoolTask] = set()
        #: candidates that were built before the reference of their task
        self._early: dict[candidates.PoolTask, list[candidates.Candidate]] = {}

    def ask(self, task: candidates.PoolTask) -> None:
        """Have a reference built, unless a builder has it."""
        with self._lock:
            self._ask(task)

    def built(self, item: build_stage.Item) -> None:
        """A candidate has its library, or a reference was tried."""
        with self._lock:
            if isinstance(item, candidates.PoolTask):
                self._tried(item)
            elif item.task in self._ready:
                self._hand_on(item)
            else:
                self._early.setdefault(item.task, []).append(item)
                self._ask(item.task)

    def drain(self, waited: Iterable[candidates.PoolTask]) -> list[candidates.Candidate]:
        """All candidates that wait here; tasks that `waited` for a builder are not built."""
        with self._lock:
            self._asked.difference_update(waited)
            drained = [candidate for early in self._early.values() for candidate in early]
            self._early.clear()
            return drained

    def _ask(self, task: candidates.PoolTask) -> None:
        if task not in self._asked:
            self._asked.add(task)
            self._build(task)

    def _tried(self, task: candidates.PoolTask) -> None:
        self._asked.discard(task)
        if task.reference.is_settled:
            self._ready.add(task)
            self._hand_on(task)
            for candidate in self._early.pop(task, ()):
                self._hand_on(candidate)
        elif task in self._early:
            self._ask(task)
