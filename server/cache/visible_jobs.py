"""Which jobs a caller may see: what has to be known before it gets a response that others share.

A job never changes its project, so the answer is read from the database once. Only a yes is
remembered: a job of another project and one that was never made take the same query and give the
same error.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import NewType

import anyio.to_thread

from server import errors
from server.database import database, visibility
from server.store import jobs

#: The number of a job that the caller may see; only `VisibleJobs` makes them.
VisibleJob = NewType("VisibleJob", int)

#: Jobs that are remembered; the least recently used one is dropped first.
JOBS = 4096


class VisibleJobs:
    """Lives in one event loop."""

    def __init__(self, db: database.Database) -> None:
        self._db = db
        self._projects: collections.OrderedDict[int, str] = collections.OrderedDict()

    async def check(
        self, sees: visibility.Visibility, job_ids: Sequence[int]
    ) -> tuple[VisibleJob, ...]:
        """The same jobs, if all of them are visible.

        Raises:
            NotFound: one of them is not, or there is none of that number.
        """
        unknown = [number for number in job_ids if not self._is_known(sees, number)]
        if unknown:
            read = functools.partial(self._read, sees, unknown)
            projects = await anyio.to_thread.run_sync(read)
            for number in unknown:
                if number not in projects:
                    raise errors.NotFound(f"there is no job {number}")
            self._projects.update(projects)
            while len(self._projects) > JOBS:
                self._projects.popitem(last=False)
        return tuple(VisibleJob(number) for number in job_ids)

    def _is_known(self, sees: visibility.Visibility, job_id: int) -> bool:
        project = self._projects.get(job_id)
        if project is None:
            return False
        self._projects.move_to_end(job_id)
        return sees.project in (None, project)

    def _read(self, sees: visibility.Visibility, job_ids: Sequence[int]) -> dict[int, str]:
        with self._db.read(sees) as tx:
            return jobs.projects_of(tx, job_ids)
