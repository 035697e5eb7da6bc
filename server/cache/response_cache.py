"""Encoded responses about jobs that clients share.

A response is never older than what its client knows of the job: a client that learns from a
stream that its job has ended, and then requests the job, must not get what was cached before. So
whatever delivers events of a job invalidates the responses about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from server.cache import single_flight, visible_jobs


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """What a response says, and of which jobs, all of which the caller may see."""

    what: Hashable
    job_ids: tuple[visible_jobs.VisibleJob, ...]


class ResponseCache(single_flight.SingleFlight[bytes]):
    """Bodies by `Query`; lives in one event loop."""

    def invalidate(self, job_id: int) -> None:
        """Clients are about to learn of new events of a job: forget the responses about it."""
        self.forget(lambda query: isinstance(query, Query) and job_id in query.job_ids)
