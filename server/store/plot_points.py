"""Points of plots: measured trials, curves of the best so far, predicted against measured.

A curve has the points where the best fell and, last, where it is now: measuring the fastest
candidates again may change the best without a new trial.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors
from server.database import models
from server.store import rows

#: number, task, elapsed_s, measured_s, latency_us
Point = tuple[int, int, float, float, float]

#: The fields of a `CurvePoint` and of a `Predicted`; the queries leave out rows without them.
_CurvePoint = tuple[int, float, float, float]
_Predicted = tuple[int, int, int, float, float]

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


def curve(tx: orm.Session, job_id: int, task: int | None = None) -> list[rows.CurvePoint]:
    """Best so far of a job (or one task): where it fell, and where it is now.

    Raises:
        NotFound: there is no such job.
    """
    return curves(tx, [job_id], task)[job_id]


def curves(
    tx: orm.Session, job_ids: Sequence[int], task: int | None = None
) -> dict[int, list[rows.CurvePoint]]:
    """`curve` of several jobs.

    Raises:
        NotFound: one of them does not exist.
    """
    trial = models.Trial
    value = trial.curve_us if task is None else trial.latency_us
    query = sa.select(trial.job_id, trial.number, trial.elapsed_s, trial.measured_s, value)
    query = query.where(trial.job_id.in_(job_ids))
    if task is None:
        query = query.where(trial.curve_us.is_not(None))
    else:
        query = query.where(trial.task == task, trial.is_best.is_(True))
    ends = _ends(tx, job_ids, task)
    by_job: dict[int, list[rows.CurvePoint]] = {number: [] for number in job_ids}
    for job_id, *point in tx.execute(query.order_by(trial.job_id, trial.number)):
        by_job[job_id].append(rows.CurvePoint(*cast(_CurvePoint, tuple(point))))
    for job_id, points in by_job.items():
        n_trials, elapsed_s, measured_s, best_us = ends[job_id]
        if points and (n_trials > points[-1].trial or best_us != points[-1].best_us):
            now_us = points[-1].best_us if best_us is None else best_us
            points.append(rows.CurvePoint(n_trials, elapsed_s, measured_s, now_us))
    return by_job


def task_curves(tx: orm.Session, job_id: int) -> dict[int, list[rows.CurvePoint]]:
    """`curve` of each task of a job that has a latency, by the task's number.

    Raises:
        NotFound: there is no such job.
    """
    trial, task = models.Trial, models.Task
    n_trials, elapsed_s, measured_s, _ = _end(tx, job_id)
    query = sa.select(
        trial.task, trial.number, trial.elapsed_s, trial.measured_s, trial.latency_us
    ).where(trial.job_id == job_id, trial.is_best.is_(True))
    by_task: dict[int, list[rows.CurvePoint]] = {}
    for number, *point in tx.execute(query.order_by(trial.number)):
        by_task.setdefault(number, []).append(rows.CurvePoint(*cast(_CurvePoint, tuple(point))))
    bests = tx.execute(sa.select(task.number, task.best_us).where(task.job_id == job_id))
    for number, best_us in bests:
        curve_points = by_task.get(number, [])
        if not curve_points:
            continue
        now_us = curve_points[-1].best_us if best_us is None else best_us
        if curve_points[-1].trial < n_trials or now_us != curve_points[-1].best_us:
            curve_points.append(rows.CurvePoint(n_trials, elapsed_s, measured_s, now_us))
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
    weights: dict[int, float] = {}
    unscheduled_us: dict[int, float] = {}
    for number, weight, default_us in tx.execute(query):
        weights[number] = weight
        if default_us is not None:
            unscheduled_us[number] = default_us
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
    query = sa.select(
        trial.number, trial.task, trial.round, trial.predicted_us, trial.latency_us
    ).where(trial.job_id == job_id, trial.predicted_us.is_not(None), trial.latency_us.is_not(None))
    if task is not None:
        query = query.where(trial.task == task)
    newest = tx.execute(query.order_by(trial.number.desc()).limit(limit)).all()
    return [rows.Predicted(*cast(_Predicted, tuple(row))) for row in reversed(newest)]


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


def _end(tx: orm.Session, job_id: int) -> _End:
    return _ends(tx, [job_id], None)[job_id]


def _ends(tx: orm.Session, job_ids: Sequence[int], task: int | None) -> dict[int, _End]:
    """Where each job (or one task of it) is now."""
    job = models.Job
    best = job.best_us
    query = sa.select(job.id, job.n_trials, job.elapsed_s, job.measured_s, best)
    if task is not None:
        same = sa.and_(models.Task.job_id == job.id, models.Task.number == task)
        query = sa.select(
            job.id, job.n_trials, job.elapsed_s, job.measured_s, models.Task.best_us
        ).outerjoin(models.Task, same)
    current = tx.execute(query.where(job.id.in_(job_ids)))
    ends = {row[0]: (row[1], row[2], row[3], row[4]) for row in current}
    missing = [number for number in job_ids if number not in ends]
    if missing:
        raise errors.NotFound(f"there is no job {missing[0]}")
    return ends


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for position in order[begin:end]:
            ranks[position] = (begin + end - 1) / 2
        begin = end
    return ranks
