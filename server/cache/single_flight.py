"""One look at the database for all who ask the same within a moment.

Fifty clients that watch a job ask the same question fifty times in two seconds. Who asks while an
answer is made, or a moment after, gets that one. An answer is never older than `keep_s` (or than
the look itself took), and whatever this process changes makes it forget, so that a client reads
what it wrote. Changes of other processes are seen `keep_s` later at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Answers by what was asked; lives in one event loop.

    Args:
        keep_s: how long an answer is given again, from when it began to be made.
    """

    def __init__(self, keep_s: float = 0.2) -> None:
        self._keep_s = keep_s
        self._tasks: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` gives, or gave a moment ago."""
        task = self._tasks.get(key)
        if task is None:
            began_s = asyncio.get_running_loop().time()
            task = asyncio.ensure_future(make())
            self._tasks[key] = task
            task.add_done_callback(lambda made: self._made(key, made, began_s))
        return await asyncio.shield(task)  # one who leaves takes it from nobody

    def forget(self, which: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Something was changed: answers from before to these keys are not given any more."""
        for key in [key for key in self._tasks if which(key)]:
            del self._tasks[key]

    def _made(self, key: Hashable, task: asyncio.Future[T], began_s: float) -> None:
        if task.cancelled() or task.exception() is not None:  # errors are told, not kept
            self._drop(key, task)
        else:
            loop = asyncio.get_running_loop()
            loop.call_at(began_s + self._keep_s, self._drop, key, task)

    def _drop(self, key: Hashable, task: asyncio.Future[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
