"""What every route can reach: the store, the blobs, the parser, the settings.

Made once by `server.app.create_app`; routes ask for it as a parameter:

    def route(services: context.Needed) -> ...

Reads nothing; feeds routers.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import anyio
import fastapi

from server import auth_throttle, blobs, database, feed, parsing, settings, states


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
    #: by job and sequence number
    looks: feed.Shared[Seen]
    feed: feed.Feed
    throttle: auth_throttle.Throttle
    #: requests that parse at the same time; more of them wait, and some are refused
    parse_limiter: anyio.CapacityLimiter

    @property
    def is_https(self) -> bool:
        """Whether users reach the service by https."""
        return self.settings.address.startswith("https://")


def services(request: fastapi.Request) -> Services:
    """The parts of the application that serves this request."""
    found: Services = request.app.state.services
    return found


Needed = Annotated[Services, fastapi.Depends(services)]
