"""Whose turn it is: keys share the tuners, and many jobs of one hold up no other's."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from server import states
from server.database import columns, database, models
from server.store import leases, queue, turns
from tests.support import service_fakes

State = states.State
SLICE_S = 15.0
TARGETS = service_fakes.TARGET_KEYS


def key(db: database.Database, name: str) -> int:
    return service_fakes.key(db, name, can_submit=True).key.id


def submit(db: database.Database, key_id: int, **changes: Any) -> int:
    return service_fakes.create(db, key_id=key_id, **changes).id


def begun(db: database.Database, job_id: int) -> int:
    """As a job that had a tuner before."""
    with db.write() as tx:
        changed = sa.update(models.Job).where(models.Job.id == job_id)
        tx.execute(changed.values(started_at=columns.db_now()))
    return job_id


def charge(db: database.Database, key_id: int, seconds: float) -> None:
    service_fakes.write(db, turns.charge, key_id, seconds)


def is_over(db: database.Database, job_id: int) -> bool:
    return service_fakes.read(db, turns.is_over, job_id, TARGETS, SLICE_S)


def test_keys_take_turns_however_many_jobs_one_has(db: database.Database) -> None:
    hostile, normal = key(db, "hostile"), key(db, "normal")
    theirs = [submit(db, hostile) for _ in range(8)]
    mine = submit(db, normal)
    order = [service_fakes.claim(db).job.id for _ in range(3)]
    assert order == [mine, theirs[0], theirs[1]]


def test_a_new_job_goes_before_what_was_put_back(db: database.Database) -> None:
    hostile, normal = key(db, "hostile"), key(db, "normal")
    theirs = [submit(db, hostile) for _ in range(2)]
    fence = service_fakes.claim(db).fence
    charge(db, hostile, 20.0)
    assert not is_over(db, theirs[0])
    charge(db, normal, 100.0)  # however much its key had lately, unless that was really much
    mine = submit(db, normal)
    assert is_over(db, theirs[0])
    service_fakes.write(db, leases.release, fence)
    assert service_fakes.claim(db).job.id == mine


def test_a_key_that_had_really_much_waits(db: database.Database) -> None:
    first, second = key(db, "first"), key(db, "second")
    running = submit(db, first)
    service_fakes.claim(db)
    charge(db, second, turns.COARSE_S + 50.0)
    submit(db, second)
    assert not is_over(db, running)
    charge(db, first, 100.0)
    assert is_over(db, running)


def test_the_key_that_had_least_goes_first(db: database.Database) -> None:
    first, second = key(db, "first"), key(db, "second")
    older, newer = submit(db, first), submit(db, second)
    charge(db, first, 5.0)
    assert service_fakes.claim(db).job.id == newer
    assert service_fakes.claim(db).job.id == older


def test_urgent_jobs_go_first_whatever_their_key_had(db: database.Database) -> None:
    first, second = key(db, "first"), key(db, "second")
    charge(db, first, 500.0)
    submit(db, second)
    urgent = submit(db, first, priority=1)
    assert service_fakes.claim(db).job.id == urgent


def test_a_job_yields_when_its_key_had_more_by_a_slice(db: database.Database) -> None:
    hostile, normal = key(db, "hostile"), key(db, "normal")
    running = submit(db, hostile)
    service_fakes.claim(db)
    assert not is_over(db, running)
    mine = begun(db, submit(db, normal))
    charge(db, hostile, SLICE_S - 1)
    assert not is_over(db, running)
    charge(db, hostile, 2.0)
    assert is_over(db, running)
    assert not is_over(db, mine)  # it has no tuner


def test_a_new_job_is_not_sliced_until_its_key_had_as_much(db: database.Database) -> None:
    hostile, normal = key(db, "hostile"), key(db, "normal")
    charge(db, hostile, 100.0)
    mine = submit(db, normal)
    service_fakes.claim(db)
    begun(db, submit(db, hostile))
    charge(db, normal, 99.0)
    assert not is_over(db, mine)
    charge(db, normal, 20.0)
    assert is_over(db, mine)


def test_one_key_alone_never_yields(db: database.Database) -> None:
    only = key(db, "only")
    running = submit(db, only)
    service_fakes.claim(db)
    submit(db, only), submit(db, only, priority=9)
    charge(db, only, 1000.0)
    assert not is_over(db, running)


def test_only_what_this_tuner_could_measure_counts(db: database.Database) -> None:
    hostile, normal = key(db, "hostile"), key(db, "normal")
    running = submit(db, hostile)
    service_fakes.claim(db)
    charge(db, hostile, 100.0)
    submit(db, normal, target_key="cuda/sm_90")
    assert not is_over(db, running)
    later = submit(db, normal)
    with db.write() as tx:
        changed = sa.update(models.Job).where(models.Job.id == later)
        tx.execute(changed.values(not_before=columns.db_now(100)))
    assert not is_over(db, running)


def test_priority_decides_before_shares(db: database.Database) -> None:
    busy, other = key(db, "busy"), key(db, "other")
    running = submit(db, busy, priority=5)
    service_fakes.claim(db)
    charge(db, busy, 1000.0)
    submit(db, other, priority=4)
    assert not is_over(db, running)
    submit(db, other, priority=6)
    assert is_over(db, running)


def test_one_waiting_job_takes_one_tuner(db: database.Database) -> None:
    hostile, normal = key(db, "hostile"), key(db, "normal")
    running = [submit(db, hostile) for _ in range(3)]
    for _ in running:
        service_fakes.claim(db)
    charge(db, hostile, 100.0)
    submit(db, normal)
    assert sum(is_over(db, job_id) for job_id in running) == 1


def test_a_key_with_as_many_tuners_takes_no_more(db: database.Database) -> None:
    first, second = key(db, "first"), key(db, "second")
    submit(db, first), submit(db, second)
    running = [service_fakes.claim(db).job.id for _ in range(2)]
    charge(db, first, 1000.0)
    submit(db, second)
    assert not any(is_over(db, job_id) for job_id in running)


def test_what_a_key_had_counts_half_after_a_while(db: database.Database) -> None:
    had = key(db, "had")
    charge(db, had, 80.0)
    charge(db, had, 20.0)
    with db.write() as tx:
        assert turns.usage_by_key(tx)[had] == pytest.approx(100.0, rel=0.01)
        earlier = columns.db_now(-turns.HALF_LIFE_S)
        tx.execute(sa.update(models.Key).values(tuner_s_at=earlier))
        assert turns.usage_by_key(tx)[had] == pytest.approx(50.0, rel=0.01)
        turns.charge(tx, None, 5.0)
        turns.charge(tx, had + 1, 5.0)  # a key that is gone
        assert list(turns.usage_by_key(tx)) == [had]


def test_a_turn_that_ends_is_no_failure(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    assert service_fakes.write(db, leases.release, fence, {"yielded": True}) is State.QUEUED
    assert service_fakes.get(db, job.id).attempts == 0
    fence = service_fakes.claim(db).fence
    service_fakes.write(db, leases.release, fence, {"yielded": True}, is_attempt=True)
    assert service_fakes.get(db, job.id).attempts == 1


def test_the_jobs_of_another_key_are_ahead_one_by_one(db: database.Database) -> None:
    many, few = key(db, "many"), key(db, "few")
    for _ in range(5):
        submit(db, many)
    mine = [service_fakes.create(db, key_id=few) for _ in range(2)]
    urgent = service_fakes.create(db, key_id=many, priority=5)

    def position(key_id: int, job: Any = None) -> int:
        work = queue.Work(
            target_key=mine[0].target_key,
            trials=8,
            seconds=None,
            key_id=key_id,
            job_id=None if job is None else job.id,
            priority=0 if job is None else job.priority,
        )
        return service_fakes.read(db, queue.estimate, work, 30.0).position

    assert position(many, urgent) == 1
    assert [position(few, job) for job in mine] == [3, 5]  # the urgent one, then turn by turn
    assert position(few) == 7  # not submitted yet: behind its key's jobs
    assert position(many) == 9  # and behind everything
