"""Where a job stands in the queue: keys take turns, so many jobs of one hold up no other's."""

from __future__ import annotations

from typing import Any

from server.database import database
from server.store import jobs, keys, queue
from tests.support import service_fakes


def test_the_jobs_of_another_key_are_ahead_one_by_one(db: database.Database) -> None:
    with db.write() as tx:
        many, few = (keys.create(tx, keys.NewKey(name=name)).key.id for name in "mf")
        for _ in range(5):
            jobs.create(tx, service_fakes.new_job(), many)
        mine = [jobs.create(tx, service_fakes.new_job(), few).job for _ in range(2)]
        urgent = jobs.create(tx, service_fakes.new_job(priority=5), many).job

    def position(key_id: int, job: Any = None) -> int:
        work = queue.Work(
            target_key=mine[0].target_key,
            trials=8,
            seconds=None,
            key_id=key_id,
            job_id=None if job is None else job.id,
            priority=0 if job is None else job.priority,
        )
        with db.read() as tx:
            return queue.estimate(tx, work, 30.0).position

    assert position(many, urgent) == 1
    assert [position(few, job) for job in mine] == [3, 5]  # the urgent one, then turn by turn
    assert position(few) == 7  # not submitted yet: behind its key's jobs
    assert position(many) == 9  # and behind everything
