"""What every route can reach: the store, the blobs, the parser, the settings.

Made once by `server.app.create_app`; routes ask for it as a parameter:

    def route(services: context.Needed) -> ...
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import anyio
import fastapi

from server import settings, states
from server.cache import notifier, recent_events, response_cache, single_flight
from server.database import database
from server.parsing import parser as parsing
from server.store import blobs, rows
from server.web import throttle as auth_throttle


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """New events of a job as a stream sends them, and the job's state."""

    state: states.State
    last_seq: int
    encoded: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The parts of one application."""

    settings: settings.Settings
    db: database.Database
    blobs: blobs.BlobStore
    parser: parsing.Parser
    feed: notifier.Feed
    #: of streams, by job and sequence number
    seen: single_flight.Shared[Seen]
    answers: response_cache.Answers
    tails: recent_events.Tails
    #: keys that were presented a moment ago, by the sha256 of their text
    known: single_flight.Shared[rows.Key]
    throttle: auth_throttle.Throttle
    #: requests that parse at the same time; more of them wait, and some are refused
    parse_limiter: anyio.CapacityLimiter

    @property
    def is_https(self) -> bool:
        """Whether users reach the service by https."""
        return self.settings.address.startswith("https://")

    def changed(self) -> None:
        """This process changed something: nothing that was read before is given to anybody."""
        for kept in (self.seen, self.answers, self.tails, self.known):
            kept.forget()


async def services(request: fastapi.Request) -> Services:
    """The parts of the application that serves this request.

    Like all that routes ask for, it is async: others cost a change of threads each.
    """
    found: Services = request.app.state.services
    return found


Needed = Annotated[Services, fastapi.Depends(services)]
