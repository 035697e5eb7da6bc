"""Lists of jobs: filtered, by number or sorted by a column, page by page, and counted.

Pages neither skip nor repeat a row while rows are made, changed and deleted: a page's cursor is
what its last row is sorted by, and that row's number. The next page has the rows behind it,
whether or not that row is still there. Rows with equal values are in the order of their numbers,
newest first; rows without a value come last in both directions.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import models
from server.store import jobs, rows

Value = str | int | float | None

#: The largest number of an INTEGER column.
_MAX_INT = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: the value it is sorted by and its number."""

    value: Value
    number: int

    def __str__(self) -> str:
        """As an address has it; `7` for the row 7 of a list that is sorted by number."""
        if self.value == self.number:
            return str(self.number)
        return f"{self.number}:{json.dumps(self.value, ensure_ascii=False)}"

    @classmethod
    def of(cls, text: str, kind: type) -> Self:
        """Read a text of `str`.

        Args:
            kind: of the values: `str`, `int` or `float`.

        Raises:
            InvalidRequest: it is none, or its value is of another kind.
        """
        number, separator, rest = text.partition(":")
        try:
            value = json.loads(rest) if separator else int(number)
            if not 0 <= int(number) <= _MAX_INT or not _is_of(value, kind):
                raise ValueError
        except (ValueError, RecursionError):
            raise errors.InvalidRequest("this page of the list does not exist") from None
        return cls(value, int(number))


def ordered(
    query: sa.Select[Any],
    value: sa.ColumnElement[Any],
    number: sa.ColumnElement[int],
    descending: bool,
    after: Cursor | None,
) -> sa.Select[Any]:
    """The query in the order of `value`, from behind the cursor on."""
    if after is not None:
        query = query.where(_behind(value, number, descending, after))
    direction = value.desc() if descending else value.asc()
    return query.order_by(value.is_(None), direction, number.desc())


def _behind(
    value: sa.ColumnElement[Any], number: sa.ColumnElement[int], descending: bool, after: Cursor
) -> sa.ColumnElement[bool]:
    if after.value is None:
        return sa.and_(value.is_(None), number < after.number)
    further = value < after.value if descending else value > after.value
    same = sa.and_(value == after.value, number < after.number)
    return sa.or_(further, same, value.is_(None))


def _is_of(value: Any, kind: type) -> bool:
    if value is None:
        return True
    if kind is str:
        return isinstance(value, str) and value.isprintable()
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return False
    return abs(value) <= _MAX_INT if kind is int else math.isfinite(value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs; empty fields select all. `text` is a part of the name or the operator; a
    `target_key` also finds the keys of the devices of its kind (`llvm`: `llvm/znver4`, ...)."""

    states: tuple[states.State, ...] = ()
    target_key: str | None = None
    kind: str | None = None
    op: str | None = None
    tags: tuple[str, ...] = ()
    text: str | None = None
    key_id: int | None = None
    project: str | None = None
    #: `program_key` or `task_key` of a task
    program: str | None = None


class Sort(enum.StrEnum):
    """What a table of jobs is sorted by."""

    NUMBER = "number"
    NAME = "name"
    STATE = "state"
    OWNER = "owner"
    PRIORITY = "priority"
    TRIALS = "trials"
    LATENCY = "latency"
    SPEEDUP = "speedup"

    @property
    def kind(self) -> type:
        """The type of the values."""
        if self in (Sort.NAME, Sort.OWNER):
            return str
        return float if self in (Sort.LATENCY, Sort.SPEEDUP) else int


def page(
    tx: orm.Session,
    chosen: Filter | None = None,
    limit: int = 50,
    after: int | None = None,
    oldest_first: bool = False,
) -> rows.Page[rows.Job, int]:
    """Jobs by number, newest first; `after` is the last number of the page before."""
    number = models.Job.id
    query = _filtered(sa.select(models.Job), chosen or Filter())
    if after is not None:
        query = query.where(number > after if oldest_first else number < after)
    order = number.asc() if oldest_first else number.desc()
    listed = list(tx.scalars(query.order_by(order).limit(limit + 1)))
    next_after = listed[limit - 1].id if len(listed) > limit else None
    return rows.Page(tuple(jobs.as_rows(tx, listed[:limit])), next_after)


def sorted_page(
    tx: orm.Session,
    chosen: Filter,
    sort: Sort,
    descending: bool,
    limit: int,
    after: Cursor | None = None,
) -> rows.Page[rows.Job, Cursor]:
    """Jobs in the order of `sort`; unknown values come last, equal ones newest first."""
    value = _sorted_by(sort)
    query = _filtered(sa.select(models.Job, value), chosen)
    query = ordered(query, value, models.Job.id.expression, descending, after)
    listed = tx.execute(query.limit(limit + 1)).all()
    items = tuple(jobs.as_rows(tx, [job for job, _ in listed[:limit]]))
    if len(listed) <= limit:
        return rows.Page(items, None)
    last, last_value = listed[limit - 1]
    return rows.Page(items, Cursor(last_value, last.id))


def counts(tx: orm.Session) -> dict[states.State, int]:
    """How many jobs are in each state."""
    grouped = tx.execute(sa.select(models.Job.state, sa.func.count()).group_by(models.Job.state))
    return dict.fromkeys(states.State, 0) | {state: count for state, count in grouped}


def _sorted_by(sort: Sort) -> sa.ColumnElement[Any]:
    job = models.Job
    owner = sa.select(sa.func.lower(models.Key.name)).where(models.Key.id == job.key_id)
    ranks = ((job.state == state, rank) for rank, state in enumerate(states.State))
    expressions: dict[Sort, sa.ColumnElement[Any]] = {
        Sort.NUMBER: job.id.expression,
        Sort.NAME: sa.func.lower(job.name),
        Sort.STATE: sa.case(*ranks),
        Sort.OWNER: owner.scalar_subquery(),
        Sort.PRIORITY: job.priority.expression,
        Sort.TRIALS: job.n_trials.expression,
        Sort.LATENCY: job.best_us.expression,
        Sort.SPEEDUP: job.unscheduled_us / job.best_us,
    }
    return expressions[sort]


def _filtered(query: sa.Select[Any], chosen: Filter) -> sa.Select[Any]:
    job = models.Job
    if chosen.states:
        query = query.where(job.state.in_(chosen.states))
    for name in ("kind", "op", "key_id", "project"):
        if (value := getattr(chosen, name)) is not None:
            query = query.where(getattr(job, name) == value)
    if chosen.target_key is not None:
        query = query.where(jobs.is_for(chosen.target_key))
    if chosen.program is not None:
        task = models.Task
        is_of_program = sa.or_(task.program_key == chosen.program, task.task_key == chosen.program)
        query = query.where(job.id.in_(sa.select(task.job_id).where(is_of_program)))
    for tag in chosen.tags:
        tagged = sa.select(models.JobTag.job_id).where(models.JobTag.tag == tag)
        query = query.where(job.id.in_(tagged))
    if chosen.text:
        texts = (job.name, job.op)
        has_text = (text.icontains(chosen.text, autoescape=True) for text in texts)
        query = query.where(sa.or_(*has_text))
    return query
