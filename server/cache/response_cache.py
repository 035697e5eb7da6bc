"""Answers about jobs that clients share, and none is older than what a client knows of the job.

A client that is told by a stream that its job has ended, and then asks for the job, must not get
the answer that another one got before. So what tells events of a job makes its answers be
forgotten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from server.cache import single_flight


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What an answer says, and of which jobs."""

    what: Hashable
    job_ids: tuple[int, ...]


class Answers(single_flight.Shared[bytes]):
    """Bodies, by what was `Asked`; lives in one event loop."""

    def told(self, job_id: int) -> None:
        """Clients will know of events of a job: what was read of it before is given no more."""
        self.forget(lambda asked: isinstance(asked, Asked) and job_id in asked.job_ids)
