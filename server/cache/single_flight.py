"""One computation for all callers of a key, and its value for a short time.

Fifty clients that watch a job send the same request fifty times in two seconds. A caller that
comes while a value is computed, or within `ttl_s` of when that began, gets that value. A change by
this process makes it forget, so that a client reads what it wrote; changes by other processes are
visible `ttl_s` later at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Values by key; lives in one event loop.

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
