"""The sorted table of jobs: complete, in order, and steady while rows change between its pages."""

from __future__ import annotations

import itertools
import random

import pytest
import sqlalchemy as sa

from server import errors
from server.database import database, models
from server.store import control, job_lists, jobs, keys, rows
from tests.support import service_fakes

N = 23


@pytest.fixture
def numbers(db: database.Database) -> list[int]:
    """Jobs with equal and unknown values in every column."""
    draw = random.Random(3)
    with db.write() as tx:
        owners = [keys.create(tx, keys.NewKey(name=name)).key.id for name in ("bob", "Ann")]
        made = [
            jobs.create(
                tx,
                service_fakes.new_job(name=draw.choice("aBcü"), priority=draw.randrange(-2, 3)),
                draw.choice([None, *owners]),
            ).job.id
            for _ in range(N)
        ]
        for number in made:
            values = {
                "n_trials": draw.randrange(4),
                "best_us": draw.choice([None, 0.1, 1 / 3, 2e7]),
                "unscheduled_us": draw.choice([None, 0.7, 5.0]),
            }
            tx.execute(sa.update(models.Job).where(models.Job.id == number).values(**values))
        for number in made[::5]:
            control.cancel(tx, number)
    return made


def every_page(
    db: database.Database, sort: job_lists.Sort, descending: bool, limit: int
) -> list[rows.Job]:
    listed: list[rows.Job] = []
    cursor: job_lists.Cursor | None = None
    while True:
        with db.read() as tx:
            page = job_lists.sorted_page(tx, job_lists.Filter(), sort, descending, limit, cursor)
        listed += page.jobs
        if page.next is None:
            return listed
        cursor = job_lists.Cursor.of(str(page.next), sort.kind)  # as an address has it
        assert cursor == page.next


def test_pages_are_the_whole_list(db: database.Database, numbers: list[int]) -> None:
    for sort, descending in itertools.product(job_lists.Sort, (False, True)):
        whole = every_page(db, sort, descending, 1000)
        assert sorted(job.id for job in whole) == numbers
        assert every_page(db, sort, descending, 4) == whole
        values = [_value(job, sort) for job in whole]
        known = [value for value in values if value is not None]
        assert values == known + [None] * (len(values) - len(known))
        if sort not in (job_lists.Sort.OWNER, job_lists.Sort.NAME):  # collations differ
            assert known == sorted(known, reverse=descending)
        for one, other in itertools.pairwise(whole):
            if _value(one, sort) == _value(other, sort):
                assert one.id > other.id


def test_a_page_goes_on_where_the_one_before_ended_though_rows_change(
    db: database.Database, numbers: list[int]
) -> None:
    whole = every_page(db, job_lists.Sort.TRIALS, True, 1000)
    with db.read() as tx:
        first = job_lists.sorted_page(tx, job_lists.Filter(), job_lists.Sort.TRIALS, True, 6)
    assert first.next is not None
    last = first.jobs[-1]
    with db.write() as tx:  # the last row of the page goes, and the first one moves to the end
        control.cancel(tx, last.id) if last.state == "queued" else None
        control.delete(tx, last.id)
        moved = sa.update(models.Job).where(models.Job.id == first.jobs[0].id)
        tx.execute(moved.values(n_trials=0))
    with db.read() as tx:
        second = job_lists.sorted_page(
            tx, job_lists.Filter(), job_lists.Sort.TRIALS, True, 6, first.next
        )
    expected = [job.id for job in whole[6:12]]
    assert [job.id for job in second.jobs if job.id != first.jobs[0].id] == expected[:6]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", int),
        ("x", int),
        ("-1", int),
        ("4:", int),
        ('4:"a"', int),
        ("4:1.5", int),
        ("4:true", int),
        ("4:99999999999", int),
        ("99999999999", int),
        ("4:NaN", float),
        ("4:Infinity", float),
        ("4:[1]", str),
        ('4:"\\u0000"', str),
        ("4:" + "[" * 5000, str),
    ],
)
def test_cursors_that_are_none_are_refused(text: str, kind: type) -> None:
    with pytest.raises(errors.InvalidRequest, match="this page of the list does not exist"):
        job_lists.Cursor.of(text, kind)


def _value(job: rows.Job, sort: job_lists.Sort) -> object:
    order = {state: rank for rank, state in enumerate(type(job.state))}
    return {
        job_lists.Sort.NUMBER: job.id,
        job_lists.Sort.NAME: job.name.lower(),
        job_lists.Sort.STATE: order[job.state],
        job_lists.Sort.OWNER: job.key_id,
        job_lists.Sort.PRIORITY: job.priority,
        job_lists.Sort.TRIALS: job.n_trials,
        job_lists.Sort.LATENCY: job.best_us,
        job_lists.Sort.SPEEDUP: job.speedup,
    }[sort]
