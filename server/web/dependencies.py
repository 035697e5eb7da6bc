"""What every route can reach: the store, the blobs, the parser, the settings.

Made once by `server.app.create_app`; routes take it as a parameter:

    def route(services: dependencies.ServicesDep) -> ...
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import anyio
import fastapi

from server import settings, states
from server.cache import (
    notifier,
    recent_events,
    response_cache,
    single_flight,
    visible_jobs,
)
from server.database import database
from server.parsing import parser as parsing
from server.store import blobs, rows
from server.web import throttle


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
    notifier: notifier.Notifier
    #: by visible job and sequence number
    stream_chunks: single_flight.SingleFlight[StreamChunk]
    visible_jobs: visible_jobs.VisibleJobs
    response_cache: response_cache.ResponseCache
    recent_events: recent_events.RecentEvents
    #: API keys that were checked a moment ago, by the sha256 of their text
    key_cache: single_flight.SingleFlight[rows.Key]
    throttle: throttle.Throttle
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
