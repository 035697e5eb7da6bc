"""What every route can reach: store, blobs, parser, settings; and the throttle of logins."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from typing import Annotated

import anyio
import fastapi

from server import cache as caches
from server import errors, settings, states
from server.database import database
from server.parsing import parser as parsing
from server.store import blobs, rows

#: Addresses remembered; the oldest are forgotten first.
MAX_ADDRESSES = 10_000
#: Failed logins within so many seconds before an address has to wait.
MAX_FAILURES, WINDOW_S = 10, 60.0


class Throttled(errors.ServiceError):
    """Too many failed logins from this address: wait a minute."""

    status = 429
    retry_after_s = 60


class Throttle:
    """Counts failures by address in a sliding window.

    Keys have 256 random bits, so this does not guard them; it keeps a broken client or a scanner
    from costing anything. Counts live in the process: several API servers allow several times as
    much.
    """

    def __init__(self) -> None:
        self._failures: collections.OrderedDict[str, list[float]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Refuse an address that failed too often.

        Raises:
            Throttled
        """
        with self._lock:
            if len(self._recent(address)) >= MAX_FAILURES:
                raise Throttled()

    def failed(self, address: str) -> None:
        """Count a failure."""
        with self._lock:
            self._failures[address] = [*self._recent(address), time.monotonic()]
            self._failures.move_to_end(address)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = time.monotonic() - WINDOW_S
        return [at for at in self._failures.get(address, []) if at > since]


@dataclasses.dataclass(frozen=True, slots=True)
class StreamChunk:
    """New events of a job as a stream sends them, and the job's state."""

    state: states.State
    last_seq: int
    encoded: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The parts of one application."""

    settings: settings.Settings
    #: all projects: routes read and write by `auth.Caller`, which sees what its key may
    unrestricted_db: database.Database
    blobs: blobs.BlobStore
    parser: parsing.Parser
    notifier: caches.Notifier
    #: by visible job and sequence number
    stream_chunks: caches.SingleFlight[StreamChunk]
    visible_jobs: caches.VisibleJobs
    response_cache: caches.ResponseCache
    recent_events: caches.RecentEvents
    #: API keys that were checked a moment ago, by the sha256 of their text
    key_cache: caches.SingleFlight[rows.Key]
    throttle: Throttle
    #: requests that parse at the same time; more of them wait, and some are refused
    parse_limiter: anyio.CapacityLimiter

    @property
    def is_https(self) -> bool:
        """Whether users reach the service by https."""
        return self.settings.address.startswith("https://")

    def invalidate_caches(self) -> None:
        """This process changed something: no client gets what was read before."""
        for cache in (self.stream_chunks, self.response_cache, self.recent_events, self.key_cache):
            cache.forget()


async def services(request: fastapi.Request) -> Services:
    """The parts of the application that serves this request.

    Like all dependencies of routes, it is async: others cost a change of threads each.
    """
    application_services: Services = request.app.state.services
    return application_services


ServicesDep = Annotated[Services, fastapi.Depends(services)]
