"""Points of plots: measured trials, curves of the best so far, predicted against measured.

A curve has the points where the best fell and, last, where it is now: measuring the fastest
candidates again may change the best without a new trial.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import models
from server.store import rows

#: number, task, elapsed_s, measured_s, latency_us
Point = tuple[int, int, float, float, float]

#: trials, elapsed_s, measured_s, best_us
_End = tuple[int, float, float, float | None]


def points(
    tx: orm.Session,
    job_id: int,
    task: int | None = None,
    after: int = 0,
    up_to: int | None = None,
    most: int = 4000,
) -> list[Point]:
    """Measured trials after a number and up to another one, oldest first.

    Of more than `most` trials only every n-th is given, and those that were best.
    """
    trial = models.Trial
    n_trials = tx.scalar(sa.select(models.Job.n_trials).where(models.Job.id == job_id)) or 0
    last = n_trials if up_to is None else min(up_to, n_trials)
    every = math.ceil(max(1, last - after) / most)
    query = sa.select(
        trial.number, trial.task, trial.elapsed_s, trial.measured_s, trial.latency_us
    ).where(trial.job_id == job_id, trial.number > after, trial.latency_us.is_not(None))
    query = query.where(trial.number <= last)
    if task is not None:
        query = query.where(trial.task == task)
    if every > 1:
        query = query.where(sa.or_(trial.number % every == 0, trial.is_best.is_(True)))
    selected = tx.execute(query.order_by(trial.number))
    return [cast(Point, tuple(row)) for row in selected]


def curves(
    tx: orm.Session, job_ids: Sequence[int], task: int | None = None
) -> dict[int, list[rows.CurvePoint]]:
    """Best so far of jobs (or one task of each): where it fell, and where it is now.

    Raises:
        NotFound: one of them does not exist.
    """
    trial = models.Trial
    value = trial.curve_us if task is None else trial.latency_us
    point = (trial.number, trial.elapsed_s, trial.measured_s, value)
    query: Any = sa.select(trial.job_id, *point).where(trial.job_id.in_(job_ids))
    if task is None:
        query = query.where(trial.curve_us.is_not(None))
    else:
        query = query.where(trial.task == task, trial.is_best.is_(True))
    ends = _ends(tx, job_ids, task)
    by_job: dict[int, list[rows.CurvePoint]] = {number: [] for number in job_ids}
    for job_id, *values in tx.execute(query.order_by(trial.job_id, trial.number)):
        by_job[job_id].append(rows.CurvePoint(*values))
    for job_id, curve_points in by_job.items():
        _add_end(curve_points, ends[job_id])
    return by_job


def task_curves(tx: orm.Session, job_id: int) -> dict[int, list[rows.CurvePoint]]:
    """As `curves`, of each task of a job that has a latency, by the task's number.

    Raises:
        NotFound: there is no such job.
    """
    trial, task = models.Trial, models.Task
    n_trials, elapsed_s, measured_s, _ = _ends(tx, [job_id], None)[job_id]
    point = (trial.number, trial.elapsed_s, trial.measured_s, trial.latency_us)
    query: Any = sa.select(trial.task, *point)
    query = query.where(trial.job_id == job_id, trial.is_best.is_(True))
    by_task: dict[int, list[rows.CurvePoint]] = {}
    for number, *values in tx.execute(query.order_by(trial.number)):
        by_task.setdefault(number, []).append(rows.CurvePoint(*values))
    bests = sa.select(task.number, task.best_us).where(task.job_id == job_id)
    for number, best_us in tx.execute(bests):
        _add_end(by_task.get(number, []), (n_trials, elapsed_s, measured_s, best_us))
    return by_task


def network_curve(tx: orm.Session, job_id: int) -> list[rows.CurvePoint]:
    """Estimated latency of a call of a job's network: the sum of weight x latency over its tasks.

    A task counts with the faster of its best so far and its unscheduled program. The curve begins
    as soon as all tasks have a latency: before the first trial where all unscheduled programs ran.

    Raises:
        NotFound: there is no such job.
    """
    task = models.Task
    query = sa.select(task.number, task.weight, task.unscheduled_us).where(task.job_id == job_id)
    curves_by_task = task_curves(tx, job_id)
    tasks = tx.execute(query).all()
    weights = {number: weight for number, weight, _ in tasks}
    unscheduled_us = {number: us for number, _, us in tasks if us is not None}
    latest_us = dict(unscheduled_us)
    moves = [(at, number) for number, points in curves_by_task.items() for at in points]
    moves.sort(key=lambda move: move[0].trial)
    estimated = [rows.CurvePoint(0, 0.0, 0.0, _weighted(latest_us, weights))]
    for _, same_trial in itertools.groupby(moves, key=lambda move: move[0].trial):
        for at, number in same_trial:
            latest_us[number] = min(at.best_us, unscheduled_us.get(number, math.inf))
        estimated.append(dataclasses.replace(at, best_us=_weighted(latest_us, weights)))
    return _falls([point for point in estimated if math.isfinite(point.best_us)])


def predicted(
    tx: orm.Session, job_id: int, task: int | None = None, limit: int = 5000
) -> list[rows.Predicted]:
    """Predicted and measured latencies of the newest `limit` trials, oldest first."""
    trial = models.Trial
    pair = (trial.predicted_us, trial.latency_us)
    query: Any = sa.select(trial.number, trial.task, trial.round, *pair)
    query = query.where(trial.job_id == job_id, *(each.is_not(None) for each in pair))
    if task is not None:
        query = query.where(trial.task == task)
    newest = tx.execute(query.order_by(trial.number.desc()).limit(limit)).all()
    return [rows.Predicted(*row) for row in reversed(newest)]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks, equal values sharing theirs; None if one is flat."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return statistics.correlation(_ranks(one), _ranks(other))


def _weighted(latest_us: Mapping[int, float], weights: Mapping[int, float]) -> float:
    """The sum of weight x latency; infinite while a task has no latency."""
    return math.fsum(
        weight * latest_us.get(number, math.inf) for number, weight in weights.items()
    )


def _falls(points: Sequence[rows.CurvePoint]) -> list[rows.CurvePoint]:
    """Points where the latency differs from the one before, and the last."""
    changed = [
        point
        for before, point in itertools.pairwise(points)
        if point.best_us != before.best_us or point is points[-1]
    ]
    return [*points[:1], *changed]


def _add_end(points: list[rows.CurvePoint], end: _End) -> None:
    """Add where a curve is now, if it has begun and does not end there."""
    if not points:
        return
    n_trials, elapsed_s, measured_s, best_us = end
    now_us = points[-1].best_us if best_us is None else best_us
    if points[-1].trial < n_trials or now_us != points[-1].best_us:
        points.append(rows.CurvePoint(n_trials, elapsed_s, measured_s, now_us))


def _ends(tx: orm.Session, job_ids: Sequence[int], task: int | None) -> dict[int, _End]:
    """Where each job (or one task of it) is now."""
    job = models.Job
    best_us = job.best_us if task is None else models.Task.best_us
    query = sa.select(job.id, job.n_trials, job.elapsed_s, job.measured_s, best_us)
    if task is not None:
        same = sa.and_(models.Task.job_id == job.id, models.Task.number == task)
        query = query.outerjoin(models.Task, same)
    current = tx.execute(query.where(job.id.in_(job_ids)))
    ends = {row[0]: (row[1], row[2], row[3], row[4]) for row in current}
    missing = [number for number in job_ids if number not in ends]
    if missing:
        raise errors.NotFound(f"there is no job {missing[0]}")
    return ends


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first_and_end = ((bisect.bisect_left(ordered, v), bisect.bisect(ordered, v)) for v in values)
    return [(first + end - 1) / 2 for first, end in first_and_end]
