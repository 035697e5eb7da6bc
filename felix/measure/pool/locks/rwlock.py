"""A lock that keeps timing and everything else that needs the same cores apart.

A two-thread kernel timed while two other processes compute takes 2.2 to 2.7 times as long,
and 2.2 times as long even when those run at the lowest priority (`nice` 19): one of the
kernel's threads waits for a core while the other spins. Builders are therefore stopped while
a kernel is timed (see `local`); threads of the tuner itself share this lock instead.

    with lock.shared():      # one optimiser step, say: short, so that timing waits little
        ...
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ReadWriteLock:
    """Many may hold it shared, or one exclusively; who waits for exclusive goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared = 0
        self._waiting = 0
        self._exclusive = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold it together with others, while nobody holds it exclusively."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive and not self._waiting)
            self._shared += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._changed.notify_all()

    def acquire(self) -> None:
        """Wait until nobody shares it, and hold it exclusively."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._exclusive and not self._shared)
            self._waiting -= 1
            self._exclusive = True

    def release(self) -> None:
        """Let others share it again."""
        with self._changed:
            self._exclusive = False
            self._changed.notify_all()
