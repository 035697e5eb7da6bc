"""Slows down guessing at the login: after some failures an address has to wait.

Keys have 256 random bits, so this does not guard them; it keeps a broken client or a scanner from
costing anything. Counts live in the process: several API servers allow several times as much.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

from server import errors

#: Addresses remembered; the oldest are forgotten first.
MAX_ADDRESSES = 10_000


class Throttled(errors.ServiceError):
    """Too many failed logins from this address: wait a minute."""

    status = 429
    retry_after_s = 60


class Throttle:
    """Counts failures by address in a sliding window.

    Args:
        limit: failures within the window before an address has to wait.
        window_s: length of the window.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        limit: int = 10,
        window_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._window_s, self._clock = limit, window_s, clock
        self._failures: collections.OrderedDict[str, list[float]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Refuse an address that failed too often.

        Raises:
            Throttled
        """
        with self._lock:
            if len(self._recent(address)) >= self._limit:
                raise Throttled()

    def failed(self, address: str) -> None:
        """Count a failure."""
        with self._lock:
            self._failures[address] = [*self._recent(address), self._clock()]
            self._failures.move_to_end(address)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - self._window_s
        return [at for at in self._failures.get(address, []) if at > since]
