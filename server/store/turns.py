"""Whose turn it is: the order in which keys get tuners, and when a job has had its turn.

Of equally urgent jobs, those go first whose key has the fewest tuners. Then come keys none of
whose waiting jobs has begun, so that a job soon has its first slice: those that had little of the
tuners lately (`usage`) first, then those with the fewest jobs. Then come the others, by what they
had.

A job that has a tuner yields to another key's that has not begun, or that had less by more than a
slice: two keys take turns of about two slices each.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import states
from server.database import columns, models
from server.store import statements

#: Of two keys none of whose jobs has begun, one that had more of the tuners by so many seconds
#: goes last, however few jobs it has.
COARSE_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """Jobs of one key and priority that wait, or the one that runs."""

    key_id: int | None
    priority: int
    #: the oldest
    job_id: int
    n_jobs: int = 1
    #: how many of them had a tuner before
    n_begun: int = 0

    @property
    def jobs(self) -> tuple[sa.ColumnElement[bool], ...]:
        """Selects them."""
        key_id = models.Job.key_id
        is_key = key_id.is_(None) if self.key_id is None else key_id == self.key_id
        return is_key, models.Job.priority == self.priority


@dataclasses.dataclass(frozen=True, slots=True)
class _Shares:
    """What each key has of the tuners now, and had lately."""

    n_running: Mapping[int | None, int]
    used_s: Mapping[int | None, float]
    #: waiting jobs that had a tuner before
    n_begun: Mapping[int | None, int]

    def of(self, turn: Turn) -> tuple[int, float]:
        return self.n_running.get(turn.key_id, 0), self.used_s.get(turn.key_id, 0.0)


def claimable(target_keys: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    """Selects the jobs that a tuner with these devices may take now."""
    job = models.Job
    return (
        job.state.in_(states.CLAIMABLE),
        job.lease_token.is_(None),
        job.target_key.in_(list(target_keys)),
        sa.or_(job.not_before.is_(None), job.not_before <= columns.db_now()),
    )


def order(tx: orm.Session, target_keys: Collection[str]) -> list[Turn]:
    """The waiting jobs of each key and priority, those first whose turn it is."""
    waiting = _waiting(tx, target_keys)
    if len(waiting) < 2:
        return waiting
    shares = _shares(tx, _running(tx, target_keys), waiting)
    return _sorted(waiting, shares)


def is_over(tx: orm.Session, job_id: int, target_keys: Collection[str], slice_s: float) -> bool:
    """Whether a running job has to yield to one that waits.

    Args:
        tx: a transaction.
        job_id: the job.
        target_keys: of the tuner that has it.
        slice_s: by how much its key must have had more of the tuners than the other one's.
    """
    running = _running(tx, target_keys)
    waiting = _waiting(tx, target_keys)
    if not waiting or not any(turn.job_id == job_id for turn in running):
        return False
    shares = _shares(tx, running, waiting)
    candidates = sorted(running, key=lambda turn: (-turn.priority, *shares.of(turn)), reverse=True)
    for waiter in _sorted(waiting, shares):  # each takes the tuner of at most one
        loser = next(
            (turn for turn in candidates if _outranks(waiter, turn, shares, slice_s)), None
        )
        if loser is None:
            continue
        if loser.job_id == job_id:
            return True
        candidates.remove(loser)
    return False


def _outranks(waiter: Turn, runner: Turn, shares: _Shares, slice_s: float) -> bool:
    if waiter.key_id == runner.key_id or waiter.priority < runner.priority:
        return False
    if waiter.priority > runner.priority:
        return True
    (n_waiter, waiter_s), (n_runner, runner_s) = shares.of(waiter), shares.of(runner)
    if n_waiter + 1 == n_runner:  # as even after it as before: what they had lately decides
        margin_s = slice_s if shares.n_begun.get(waiter.key_id, 0) else -COARSE_S
        return waiter_s + margin_s < runner_s
    return n_waiter + 1 < n_runner


def _sorted(waiting: list[Turn], shares: _Shares) -> list[Turn]:
    def place(turn: Turn) -> tuple[float, ...]:
        n_running, used_s = shares.of(turn)
        if shares.n_begun.get(turn.key_id, 0):
            return -turn.priority, n_running, 1, used_s, turn.job_id
        coarse = used_s // COARSE_S
        return -turn.priority, n_running, 0, coarse, turn.n_jobs, used_s, turn.job_id

    return sorted(waiting, key=place)


def _waiting(tx: orm.Session, target_keys: Collection[str]) -> list[Turn]:
    job = models.Job
    query = (
        sa.select(
            job.key_id,
            job.priority,
            sa.func.min(job.id),
            sa.func.count(),
            sa.func.count(job.started_at),
        )
        .where(*claimable(target_keys))
        .group_by(job.key_id, job.priority)
    )
    return [Turn(*group) for group in tx.execute(query)]


def _running(tx: orm.Session, target_keys: Collection[str]) -> list[Turn]:
    job: Any = models.Job
    query = sa.select(job.key_id, job.priority, job.id).where(
        job.lease_token.is_not(None), job.target_key.in_(list(target_keys))
    )
    return [Turn(*leased) for leased in tx.execute(query)]


def _shares(tx: orm.Session, running: list[Turn], waiting: list[Turn]) -> _Shares:
    n_running = collections.Counter(turn.key_id for turn in running)
    n_begun: collections.Counter[int | None] = collections.Counter()
    for turn in waiting:
        n_begun[turn.key_id] += turn.n_begun
    return _Shares(n_running, usage_by_key(tx), n_begun)


#: After so many seconds without a tuner, a key counts as if it had half as much.
HALF_LIFE_S = 600.0


def charge(tx: orm.Session, key_id: int | None, seconds: float) -> None:
    """A key had a tuner for so many seconds; None: a job of no key."""
    if key_id is None:
        return
    key = models.Key
    query = sa.select(key.tuner_s, key.tuner_s_at, columns.db_now()).where(key.id == key_id)
    charged = tx.execute(query.with_for_update(of=key)).one_or_none()
    if charged is None:
        return
    total_s = _lately(*charged) + seconds
    statements.update(tx, key, key.id == key_id, tuner_s=total_s, tuner_s_at=columns.db_now())


def usage_by_key(tx: orm.Session) -> Mapping[int | None, float]:
    """Seconds of each key that had a tuner; those of no key have 0."""
    key = models.Key
    query = sa.select(key.id, key.tuner_s, key.tuner_s_at, columns.db_now())
    charged = tx.execute(query.where(key.tuner_s > 0))
    return {key_id: _lately(tuner_s, at, now) for key_id, tuner_s, at, now in charged}


def _lately(tuner_s: float, at: datetime.datetime | None, now: datetime.datetime) -> float:
    if at is None:
        return tuner_s
    age_s = max(0.0, (now - at).total_seconds())
    return float(tuner_s * 0.5 ** (age_s / HALF_LIFE_S))
