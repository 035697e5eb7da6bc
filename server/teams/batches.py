"""Batches of the caller's key (an admin's: of any), with their jobs as they stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from server import states
from server.store import jobs, requests, rows
from server.web import auth


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """A job that was asked for: the job, or the problem that refused it.

    A job that was deleted meanwhile has its number alone.
    """

    job_id: int | None
    state: states.State | None
    problem: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A batch and what became of it."""

    row: rows.Batch
    items: tuple[Item, ...]

    @property
    def n_refused(self) -> int:
        """Jobs that were not made."""
        return sum(item.job_id is None for item in self.items)

    @property
    def n_ended(self) -> int:
        """Jobs that need no tuner any more, deleted ones too."""
        return sum(
            item.job_id is not None and (item.state is None or item.state in states.ENDED)
            for item in self.items
        )

    @property
    def n_jobs(self) -> int:
        """Jobs that were made."""
        return len(self.items) - self.n_refused

    @property
    def progress(self) -> float:
        """Share of its jobs that have ended, 0 to 1."""
        return self.n_ended / self.n_jobs if self.n_jobs else 1.0

    @property
    def counts(self) -> dict[states.State, int]:
        """Jobs by state; states without jobs are left out."""
        reached = [item.state for item in self.items if item.state is not None]
        return {state: reached.count(state) for state in states.State if state in reached}


def get(caller: auth.Caller, batch_id: int) -> Batch:
    """One batch.

    Raises:
        NotFound
    """
    with caller.read() as tx:
        row = requests.get_batch(tx, batch_id, _key_id(caller))
        return _of([row], jobs.states_of(tx, _job_ids([row])))[0]


def page(caller: auth.Caller, limit: int, after: int | None = None) -> list[Batch]:
    """Batches, newest first; `after` is the last number of the page before."""
    with caller.read() as tx:
        listed = requests.page_of_batches(tx, _key_id(caller), limit, after)
        return _of(listed, jobs.states_of(tx, _job_ids(listed)))


def _key_id(caller: auth.Caller) -> int | None:
    return None if caller.key.can_admin else caller.key.id


def _job_ids(listed: Sequence[rows.Batch]) -> list[int]:
    return [item["job_id"] for row in listed for item in row.items if "job_id" in item]


def _of(listed: Sequence[rows.Batch], by_job: Mapping[int, states.State]) -> list[Batch]:
    return [
        Batch(
            row,
            tuple(
                Item(item.get("job_id"), by_job.get(item.get("job_id", 0)), item.get("problem"))
                for item in row.items
            ),
        )
        for row in listed
    ]
