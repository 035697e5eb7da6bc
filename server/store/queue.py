"""When a job will begin and how long it will take, from what recent jobs measured.

    duration_s   = trials still to measure / rate, at most the seconds still to spend
    rate         = trials / tuning seconds, both summed over recent jobs on such devices
    begins_in_s  = duration of what runs and of what is ahead, summed, over the tuners alive

A job is ahead if it may need the same devices and has more priority, or the same and comes
earlier among the jobs of its key: keys take turns (`server.store.turns`). How long a turn is and
new jobs change the answer: it is an estimate.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from felix.client import rows
from server import states
from server.database import models, visibility
from server.store import jobs
from server.store import tuners as store_tuners

#: All projects wait for the same tuners; an estimate says nothing else of their jobs.
_OF_ALL = {visibility.UNRESTRICTED: True}

#: What `Work` has of a job, under the same names.
OF_JOB = ("target_key", "trials", "seconds", "n_trials", "elapsed_s", "priority", "key_id")

#: Recent jobs that the rate is taken from.
RECENT_JOBS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job still has to do, and where it stands in the queue."""

    target_key: str
    trials: int | None
    seconds: float | None
    n_trials: int = 0
    elapsed_s: float = 0.0
    priority: int = 0
    #: None: not submitted yet, so behind all of its key and priority
    job_id: int | None = None
    key_id: int | None = None


def estimate(tx: orm.Session, work: Work, stale_s: float) -> rows.Estimate:
    """The estimate of a queued job, or of one that may be submitted."""
    trials_per_s, n_recent_jobs = _rate(tx, work.target_key)
    tuners = store_tuners.every(tx, stale_s)
    n_tuners = sum(
        any(
            _compete(work.target_key, str(key))
            for device in tuner.devices
            for key in device.get("target_keys", ())
        )
        for tuner in tuners
        if tuner.is_alive
    )
    running, ahead = _others(tx, work)
    durations_s = [_duration_s(each, trials_per_s) for each in (*running, *ahead)]
    known_s = [duration_s for duration_s in durations_s if duration_s is not None]
    is_known = n_tuners > 0 and len(known_s) == len(durations_s)
    begins_in_s = sum(known_s) / n_tuners if is_known else None
    if begins_in_s is not None and len(running) < n_tuners and not ahead:
        begins_in_s = 0.0  # a tuner is free
    return rows.Estimate(
        position=len(ahead) + 1,
        n_tuners=n_tuners,
        trials_per_s=trials_per_s,
        n_recent_jobs=n_recent_jobs,
        duration_s=_duration_s(work, trials_per_s),
        begins_in_s=begins_in_s,
        waits_for=store_tuners.missing(tuners, work.target_key),
    )


def _rate(tx: orm.Session, target_key: str) -> tuple[float | None, int]:
    """Trials a second of recent jobs on such devices, and how many jobs say so."""
    job, task = models.Job, models.Task
    began_with_others = sa.select(task.job_id).where(
        task.job_id == job.id, task.reused_from.is_not(None)
    )
    query = (
        sa.select(job.n_trials, job.elapsed_s)
        .where(
            job.state == states.State.SUCCEEDED,
            job.n_trials > 0,
            job.elapsed_s > 0,
            jobs.is_for(target_key),
            ~began_with_others.exists(),
        )
        .order_by(job.id.desc())
        .limit(RECENT_JOBS)
    )
    recent = tx.execute(query, execution_options=_OF_ALL).all()
    seconds = sum(float(elapsed_s) for _, elapsed_s in recent)
    if not seconds:
        return None, 0
    return sum(int(n_trials) for n_trials, _ in recent) / seconds, len(recent)


def _others(tx: orm.Session, work: Work) -> tuple[Sequence[Work], Sequence[Work]]:
    """The jobs that are worked on and those that are claimed before this one."""
    job = models.Job
    active = states.CLAIMABLE | states.LEASED
    query = sa.select(
        job.id, job.lease_token.is_not(None), *(getattr(job, name) for name in OF_JOB)
    ).where(job.state.in_(active), job.id != (work.job_id or 0))
    running, waiting = [], []
    for job_id, is_leased, *values in tx.execute(query, execution_options=_OF_ALL):
        other = Work(job_id=job_id, **dict(zip(OF_JOB, values, strict=True)))
        if not _compete(work.target_key, other.target_key):
            continue
        if is_leased:
            running.append(other)
        else:
            waiting.append(other)
    places = _places([*waiting, work])
    return running, [other for other in waiting if places[id(other)] < places[id(work)]]


def _places(queue: Sequence[Work]) -> dict[int, tuple[int, int, float]]:
    """By `id` of each: a smaller one is claimed first; the n-th jobs of all keys come together."""
    by_number = sorted(queue, key=_number)
    of_key: collections.Counter[tuple[int | None, int]] = collections.Counter()
    places = {}
    for each in by_number:
        key = (each.key_id, each.priority)
        places[id(each)] = (-each.priority, of_key[key], _number(each))
        of_key[key] += 1
    return places


def _number(work: Work) -> float:
    return math.inf if work.job_id is None else work.job_id


def _compete(one: str, other: str) -> bool:
    """Whether jobs of these keys may need the same device: one names it more exactly."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _duration_s(work: Work, trials_per_s: float | None) -> float | None:
    """Tuning seconds until the job's budget is spent."""
    limits_s = []
    if work.seconds is not None:
        limits_s.append(max(0.0, work.seconds - work.elapsed_s))
    if work.trials is not None and trials_per_s is not None:
        limits_s.append(max(0, work.trials - work.n_trials) / trials_per_s)
    return min(limits_s, default=None)
