"""The contract of the store, on SQLite and on PostgreSQL."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib

import pytest
import sqlalchemy as sa

from server import errors, states
from server.database import database
from server.store import control, events, job_lists, jobs, keys, progress, trials, tuners
from tests.support import service_fakes

State = states.State


def test_a_new_job_is_queued_with_its_tasks(db: database.Database) -> None:
    job = service_fakes.create(db, n_tasks=2, tags=("b", "a", "b"), note="a note")
    assert (job.state, job.tags, job.note, job.n_tasks) == (State.QUEUED, ("a", "b"), "a note", 2)
    assert job.flops == 1e6 + 2e6
    assert job.created_at.tzinfo is not None
    assert abs(job.created_at - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(hours=1)
    with db.read() as tx:
        assert [t.name for t in jobs.tasks(tx, job.id)] == ["task-0", "task-1"]
        assert jobs.programs(tx, job.id) == ["program 0", "program 1"]
        assert jobs.code(tx, job.id, 1) == (None, None, None)
        with pytest.raises(errors.NotFound):
            jobs.code(tx, job.id, 2)
        with pytest.raises(errors.NotFound):
            jobs.get(tx, job.id + 1)


def test_rows_do_not_change_with_the_database(db: database.Database) -> None:
    before = service_fakes.create(db)
    after = service_fakes.write(db, control.change, before.id, name="another", priority=7)
    assert (before.name, before.priority) == ("a job", 0)
    assert (after.name, after.priority) == ("another", 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.name = "x"  # type: ignore[misc]


def test_a_repeated_request_makes_one_job(db: database.Database) -> None:
    key = service_fakes.key(db, can_submit=True).key
    repeat = jobs.IdempotencyKey(key="once", request_sha256="a")
    made = []
    for _ in range(2):
        made.append(service_fakes.write(db, jobs.create, service_fakes.new_job(), key.id, repeat))
    assert [m.is_new for m in made] == [True, False]
    assert made[0].job == made[1].job
    with db.write() as tx, pytest.raises(errors.Conflict):
        other = jobs.IdempotencyKey(key="once", request_sha256="b")
        jobs.create(tx, service_fakes.new_job(), key.id, other)
    assert len(service_fakes.read(db, job_lists.page).items) == 1


def test_pages_and_filters(db: database.Database) -> None:
    for number in range(7):
        service_fakes.create(
            db,
            name=f"job {number} 100%",
            op="gemm" if number % 2 else "softmax",
            tags=("even",) if number % 2 == 0 else (),
        )
    service_fakes.write(db, control.cancel, 3)
    with db.read() as tx:
        first = job_lists.page(tx, limit=3)
        second = job_lists.page(tx, limit=3, after=first.next)
        third = job_lists.page(tx, limit=3, after=second.next)
        assert [j.id for p in (first, second, third) for j in p.items] == [7, 6, 5, 4, 3, 2, 1]
        assert third.next is None
        oldest = job_lists.page(tx, limit=2, oldest_first=True)
        assert [j.id for j in oldest.items] == [1, 2] and oldest.next == 2

        def ids(**fields: object) -> list[int]:
            return [j.id for j in job_lists.page(tx, job_lists.Filter(**fields)).items]  # type: ignore[arg-type]

        assert ids(op="softmax") == [7, 5, 3, 1]
        assert ids(states=(State.CANCELLED,)) == [3]
        assert ids(tags=("even",), states=(State.QUEUED,)) == [7, 5, 1]
        assert ids(text="JOB 4") == [5]
        assert ids(text="100%") == [7, 6, 5, 4, 3, 2, 1]
        assert ids(text="_") == []
        assert ids(target_key="cuda") == []
        assert job_lists.counts(tx)[State.QUEUED] == 6


def test_numbers_are_never_reused(db: database.Database) -> None:
    job = service_fakes.create(db)
    with db.write() as tx:
        control.cancel(tx, job.id)
        assert control.delete(tx, job.id) == []
    assert service_fakes.create(db).id > job.id


def test_keys_are_found_by_their_text_only(db: database.Database) -> None:
    made = service_fakes.key(db, can_submit=True)
    assert made.text not in repr(made)
    secret = made.text.split("_", 2)[2]
    with db.read() as tx:
        assert keys.find(tx, made.text) == made.key
        wrong = [
            made.text[:-1],
            made.text + "x",
            "",
            "felix",
            "felix__",
            f"felix_{made.key.public}_",
            f"felix_{'0' * 12}_{secret}",
            f"other_{made.key.public}_{secret}",
            "felix_\0_é",
        ]
        for text in wrong:
            with pytest.raises(errors.Unauthenticated):
                keys.find(tx, text)
    with db.write() as tx:
        keys.note_use(tx, made.key.id)
        assert keys.get(tx, made.key.id).last_used_at is not None
        keys.revoke(tx, made.key.id)
    with db.read() as tx, pytest.raises(errors.Unauthenticated):
        keys.find(tx, made.text)


def test_no_secret_is_stored(db: database.Database) -> None:
    made = service_fakes.key(db)
    token, _ = service_fakes.write(db, keys.log_in, made.key.id, 60)
    secret = made.text.split("_", 2)[2]
    with db.engine.connect() as connection:
        for table in ("keys", "logins"):
            content = str(connection.exec_driver_sql(f"SELECT * FROM {table}").all())
            assert secret not in content and token not in content


def test_keys_and_logins_expire(db: database.Database) -> None:
    with db.write() as tx:
        old = keys.create(tx, keys.NewKey(name="old", expires_s=-1.0))
        new = keys.create(tx, keys.NewKey(name="new", expires_s=60.0))
        token, login = keys.log_in(tx, new.key.id, 60)
        stale, _ = keys.log_in(tx, new.key.id, -1.0)
    with db.read() as tx:
        with pytest.raises(errors.Unauthenticated):
            keys.find(tx, old.text)
        assert keys.find(tx, new.text) == new.key
        assert keys.login(tx, token) == (login, new.key)
        for bad in (stale, "", token + "x", login.csrf):
            with pytest.raises(errors.Unauthenticated):
                keys.login(tx, bad)
    service_fakes.write(db, keys.log_out, token)
    with db.read() as tx, pytest.raises(errors.Unauthenticated):
        keys.login(tx, token)


def test_audit(db: database.Database) -> None:
    with db.write() as tx:
        key = keys.create(tx, keys.NewKey(name="k")).key
        for number in range(3):
            keys.audit(tx, key, "job.create", f"job {number}", {"n": number}, "127.0.0.1")
        keys.audit(tx, None, "login.refused", "")
    with db.read() as tx:
        assert [a.subject for a in keys.audited(tx, key_id=key.id)] == ["job 2", "job 1", "job 0"]
        newest = keys.audited(tx, limit=2)
        assert newest[0].key_id is None
        assert [a.subject for a in keys.audited(tx, before=newest[-1].id)] == ["job 1", "job 0"]


def test_workers(db: database.Database) -> None:
    service_fakes.create(db)
    first, second = service_fakes.worker(db, "a"), service_fakes.worker(db, "b")
    claimed = service_fakes.claim(db, by=first)
    service_fakes.add(db, claimed.fence, service_fakes.new_trial(0))
    broken = service_fakes.new_trial(1, None, error="infrastructure")
    service_fakes.add(db, claimed.fence, broken)
    service_fakes.write(db, tuners.leave, second)
    with db.read() as tx:
        gone, busy = tuners.every(tx, stale_s=60)
        assert (busy.job_id, busy.is_alive, busy.n_trials) == (claimed.job.id, True, 2)
        assert busy.n_infrastructure == 1
        assert (gone.id, gone.is_alive, gone.job_id) == (second, False, None)
        assert not any(w.is_alive for w in tuners.every(tx, stale_s=-60))
    with db.write() as tx:
        tuners.beat(tx, second)
        assert all(w.is_alive for w in tuners.every(tx, stale_s=60))


@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "\U0001f600 é"])
def test_any_text_can_be_written(db: database.Database, text: str) -> None:
    job, fence = service_fakes.claimed(db, name=text)
    service_fakes.add(db, fence, service_fakes.new_trial(0, None, message=text))
    service_fakes.write(db, progress.warn, fence, text)
    assert "\0" not in service_fakes.read(db, trials.get, job.id, 1).message
    assert len(service_fakes.read(db, events.after, job.id)) == 4


def test_a_write_within_a_write_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_MS", 50)
    db = database.Database(f"sqlite:///{tmp_path / 'felix.db'}")
    with db.write(), pytest.raises(sa.exc.OperationalError, match="still writing"), db.write():
        pass
    with db.write():  # the turn was given back
        pass
    db.close()


def test_errors_of_the_database_show_no_values(db: database.Database) -> None:
    with pytest.raises(sa.exc.SQLAlchemyError) as caught, db.write() as tx:
        tx.execute(sa.text("INSERT INTO nothing VALUES (:v)"), {"v": "a secret value"})
    assert "a secret value" not in str(caught.value)
