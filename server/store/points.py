"""Measured trials as points of a plot: some columns of many rows."""

from __future__ import annotations

import math
from typing import cast

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import models

#: number, task, elapsed_s, measured_s, latency_us
Point = tuple[int, int, float, float, float]


def points(
    tx: orm.Session, job_id: int, task: int | None = None, after: int = 0, most: int = 4000
) -> list[Point]:
    """Measured trials after a number, oldest first.

    Of more than `most` trials only every n-th is given, and those that were best.
    """
    trial = models.Trial
    n_trials = tx.scalar(sa.select(models.Job.n_trials).where(models.Job.id == job_id)) or 0
    every = math.ceil(max(1, n_trials - after) / most)
    wanted = sa.select(
        trial.number, trial.task, trial.elapsed_s, trial.measured_s, trial.latency_us
    ).where(trial.job_id == job_id, trial.number > after, trial.latency_us.is_not(None))
    if task is not None:
        wanted = wanted.where(trial.task == task)
    if every > 1:
        wanted = wanted.where(sa.or_(trial.number % every == 0, trial.is_best.is_(True)))
    found = tx.execute(wanted.order_by(trial.number))
    return [cast(Point, tuple(row)) for row in found]
