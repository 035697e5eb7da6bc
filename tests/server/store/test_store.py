"""The contract of the store, on SQLite and on PostgreSQL."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib

import pytest
import sqlalchemy as sa

from server import errors, states
from server.database import database
from server.store import (
    artifacts,
    control,
    events,
    jobs,
    keys,
    leases,
    plot_points,
    progress,
    trials,
)
from server.store.across_jobs import job_lists
from server.store.tuners import workers
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
        assert jobs.code(tx, job.id, 1) == (None, None)
        with pytest.raises(errors.NotFound):
            jobs.code(tx, job.id, 2)
        with pytest.raises(errors.NotFound):
            jobs.get(tx, job.id + 1)


def test_rows_do_not_change_with_the_database(db: database.Database) -> None:
    before = service_fakes.create(db)
    with db.write() as tx:
        after = control.change(tx, before.id, name="another", priority=7)
    assert (before.name, before.priority) == ("a job", 0)
    assert (after.name, after.priority) == ("another", 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.name = "x"  # type: ignore[misc]


def test_a_repeated_request_makes_one_job(db: database.Database) -> None:
    with db.write() as tx:
        key = keys.create(tx, keys.NewKey(name="k", can_submit=True)).key
    repeat = jobs.IdempotencyKey(key="once", request_sha256="a")
    made = []
    for _ in range(2):
        with db.write() as tx:
            made.append(jobs.create(tx, service_fakes.new_job(), key.id, repeat))
    assert [m.is_new for m in made] == [True, False]
    assert made[0].job == made[1].job
    with db.write() as tx, pytest.raises(errors.Conflict):
        other = jobs.IdempotencyKey(key="once", request_sha256="b")
        jobs.create(tx, service_fakes.new_job(), key.id, other)
    with db.read() as tx:
        assert len(job_lists.page(tx).jobs) == 1


def test_quotas(db: database.Database) -> None:
    with db.write() as tx:
        key = keys.create(tx, keys.NewKey(name="k", can_submit=True)).key
    quota = jobs.Quota(max_running_jobs=2, max_trials=100)

    def submit(**changes: int) -> jobs.Made:
        with db.write() as tx:
            return jobs.create(tx, service_fakes.new_job(**changes), key.id, quota=quota)

    with pytest.raises(errors.QuotaExceeded, match="101 trials"):
        submit(trials=101)
    first = submit().job
    submit()
    with pytest.raises(errors.QuotaExceeded, match="2 jobs"):
        submit()
    with db.write() as tx:
        control.pause(tx, first.id)  # a paused job does not count
    submit()


def test_pages_and_filters(db: database.Database) -> None:
    for number in range(7):
        service_fakes.create(
            db, name=f"job {number} 100%", op="gemm" if number % 2 else "softmax",
            tags=("even",) if number % 2 == 0 else (),
        )  # fmt: skip
    with db.write() as tx:
        control.cancel(tx, 3)
    with db.read() as tx:
        first = job_lists.page(tx, limit=3)
        second = job_lists.page(tx, limit=3, after=first.next)
        third = job_lists.page(tx, limit=3, after=second.next)
        assert [j.id for p in (first, second, third) for j in p.jobs] == [7, 6, 5, 4, 3, 2, 1]
        assert third.next is None
        oldest = job_lists.page(tx, limit=2, oldest_first=True)
        assert [j.id for j in oldest.jobs] == [1, 2] and oldest.next == 2

        def ids(**fields: object) -> list[int]:
            return [j.id for j in job_lists.page(tx, job_lists.Filter(**fields)).jobs]  # type: ignore[arg-type]

        assert ids(op="softmax") == [7, 5, 3, 1]
        assert ids(states=(State.CANCELLED,)) == [3]
        assert ids(tags=("even",), states=(State.QUEUED,)) == [7, 5, 1]
        assert ids(text="JOB 4") == [5]
        assert ids(text="100%") == [7, 6, 5, 4, 3, 2, 1]
        assert ids(text="_") == []
        assert ids(target_key="cuda") == []
        assert job_lists.counts(tx)[State.QUEUED] == 6


def test_pages_are_stable_while_jobs_come(db: database.Database) -> None:
    for _ in range(4):
        service_fakes.create(db)
    with db.read() as tx:
        first = job_lists.page(tx, limit=2)
    service_fakes.create(db)
    with db.read() as tx:
        second = job_lists.page(tx, limit=2, after=first.next)
    assert [j.id for j in (*first.jobs, *second.jobs)] == [4, 3, 2, 1]


def test_numbers_are_never_reused(db: database.Database) -> None:
    job = service_fakes.create(db)
    with db.write() as tx:
        control.cancel(tx, job.id)
        assert control.delete(tx, job.id) == []
    assert service_fakes.create(db).id > job.id


def test_trials_make_the_curve(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    for number, latency_us in enumerate([50.0, None, 60.0, 20.0, 30.0]):
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us))
    service_fakes.add(db, fence, service_fakes.new_trial(5, 1.0, checked=False))
    after = service_fakes.get(db, job.id)
    assert (after.n_trials, after.n_failed, after.best_us) == (6, 1, 20.0)
    assert after.measured_s == pytest.approx(6 * 0.25)
    assert after.gflops == pytest.approx(1e6 / 20.0 / 1e3)
    with db.read() as tx:
        points = plot_points.curve(tx, job.id)
        assert [(p.trial, p.best_us) for p in points] == [(1, 50.0), (4, 20.0), (6, 20.0)]
        assert [p.elapsed_s for p in points] == [1.0, 4.0, 6.0]
        assert plot_points.curve(tx, job.id, task=0) == points
        assert [t.best_us for t in trials.page(tx, job.id).trials] == [50, 50, 50, 20, 20, 20]
        pairs = plot_points.predicted(tx, job.id)
        assert [(p.trial, p.latency_us) for p in pairs] == [
            (1, 50.0), (3, 60.0), (4, 20.0), (5, 30.0), (6, 1.0),
        ]  # fmt: skip
        assert [p.trial for p in plot_points.predicted(tx, job.id, limit=2)] == [5, 6]
        assert trials.error_counts(tx, job.id) == {"build": 1}
        (task,) = jobs.tasks(tx, job.id)
    assert (task.best_us, task.best_trial, task.n_trials, task.n_failed) == (20.0, 4, 6, 1)


def test_the_curve_of_several_tasks_is_their_weighted_sum(db: database.Database) -> None:
    job = service_fakes.create(db, n_tasks=2)
    fence = service_fakes.claim(db).fence
    for number, (task, latency_us) in enumerate([(0, 10.0), (1, 30.0), (1, 20.0), (0, 5.0)]):
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us, task=task))
    with db.read() as tx:
        points = plot_points.curve(tx, job.id)
        assert [(p.trial, p.best_us) for p in points] == [(2, 70.0), (3, 50.0), (4, 45.0)]
        of_task = [(p.trial, p.best_us) for p in plot_points.curve(tx, job.id, task=1)]
        assert of_task == [(2, 30.0), (3, 20.0), (4, 20.0)]
        both = plot_points.curves(tx, [job.id])
        assert both == {job.id: points}
        with pytest.raises(errors.NotFound):
            plot_points.curves(tx, [job.id, 99])


def test_what_is_measured_again_counts_alone(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    for number, latency_us in enumerate([50.0, 20.0, 21.0]):
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us))
    with db.write() as tx:
        trials.remeasure(
            tx, fence, service_fakes.new_trial(1, 25.0, record="again", elapsed_s=9.0)
        )
    after = service_fakes.get(db, job.id)
    assert (after.best_us, after.n_trials) == (21.0, 3)
    with db.write() as tx:
        trials.remeasure(tx, fence, service_fakes.new_trial(2, None, record="failed again"))
    assert service_fakes.get(db, job.id).best_us == 25.0
    with db.read() as tx:
        assert plot_points.curve(tx, job.id)[-1].best_us == 25.0
        assert trials.records(tx, job.id)[3:] == ["again", "failed again"]
        assert trials.get(tx, job.id, 2).final_us == 25.0
        (task,) = jobs.tasks(tx, job.id)
        assert (task.best_us, task.best_trial) == (25.0, 2)


def test_a_schedule_is_one_trial(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    first = service_fakes.add(db, fence, service_fakes.new_trial(0, 50.0))
    again = service_fakes.add(db, fence, service_fakes.new_trial(0, 40.0))
    assert (first.is_new, again.is_new, again.number) == (True, False, first.number)
    assert service_fakes.get(db, job.id).best_us == 50.0
    broken = service_fakes.new_trial(1, None, error="infrastructure")
    assert service_fakes.add(db, fence, broken).number == 2
    assert service_fakes.get(db, job.id).n_failed == 1
    mended = service_fakes.add(db, fence, service_fakes.new_trial(1, 30.0))
    assert (mended.number, mended.is_new) == (2, True)
    after = service_fakes.get(db, job.id)
    assert (after.n_trials, after.n_failed, after.best_us) == (2, 0, 30.0)


def test_trials_are_paged_filtered_and_streamed(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    for number in range(9):
        latency_us = None if number == 4 else 10.0 - number
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us))
    with db.read() as tx:
        first = trials.page(tx, job.id, limit=5)
        second = trials.page(tx, job.id, limit=5, after=first.next or 0)
        assert [t.number for t in (*first.trials, *second.trials)] == list(range(1, 10))
        assert second.next is None
        failed = trials.page(tx, job.id, trials.Filter(ok=False)).trials
        assert [(t.number, t.error, t.latency_us) for t in failed] == [(5, "build", None)]
        assert [t.number for t in trials.page(tx, job.id, trials.Filter(round=1)).trials] == [
            5, 6, 7, 8,
        ]  # fmt: skip
        assert len(list(trials.stream(tx, job.id))) == 9
        assert trials.get(tx, job.id, 9).decisions == [8, 2]
        with pytest.raises(errors.NotFound):
            trials.get(tx, job.id, 10)


def test_streams_are_read_in_batches(
    db: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "BATCH", 3)
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    for number in range(7):
        service_fakes.add(db, fence, service_fakes.new_trial(number))
    with db.read() as tx:
        assert [t.number for t in trials.stream(tx, job.id)] == [1, 2, 3, 4, 5, 6, 7]


def test_events_are_numbered_without_gaps(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    service_fakes.add(db, fence, service_fakes.new_trial(0))
    with db.write() as tx:
        progress.append_event(tx, fence, events.Type.WARNING, {"message": "x"})
        control.change(tx, job.id, tags=["t"])
    with db.read() as tx:
        log = events.after(tx, job.id)
        assert [e.seq for e in log] == [1, 2, 3, 4, 5]
        assert [e.type for e in log] == ["state", "state", "trial", "warning", "changed"]
        assert (log[1].from_state, log[1].to_state) == ("queued", "running")
        assert [e.seq for e in events.after(tx, job.id, 3)] == [4, 5]
        assert [e.seq for e in events.after(tx, job.id, 1, limit=2)] == [2, 3]
        only = events.after(tx, job.id, kinds=[events.Type.TRIAL])
        assert only[0].payload["latency_us"] == 10.0
        assert events.last(tx, job.id) == 5 and events.last(tx, 99) is None
        assert service_fakes.get(db, job.id).last_seq == 5


def test_a_rolled_back_event_leaves_no_gap(db: database.Database) -> None:
    job = service_fakes.create(db)

    def write(fail: bool) -> None:
        with db.write() as tx:
            events.append(tx, job.id, events.Type.WARNING, {})
            if fail:
                raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError):
        write(True)
    write(False)
    with db.read() as tx:
        assert [e.seq for e in events.after(tx, job.id)] == [1, 2]


def test_progress_of_a_run(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    counts = {"n_candidates": 4, "n_invalid": 1, "predicted_us": 3.0, "elapsed_s": 2.0}
    steps = [{"step": 0, "temperature": 0.5, "loss": 3.0, "penalty": 0.1}]
    with db.write() as tx:
        progress.started(tx, fence, ["key"], {"model": "shipped"})
        progress.opened(tx, fence, 0, 2, 0.5)
        progress.baseline(tx, fence, 0, 100.0, "")
        progress.round_started(tx, fence, 0, 0, counts, [])
        progress.round_started(tx, fence, 0, 0, counts, steps)  # after a kill
        progress.round_started(tx, fence, 0, 1, counts, [])
        training = {"n_records": 4, "loss_before": 1.0, "loss_after": None, "accepted": True}
        progress.trained(tx, fence, training)
        progress.save(
            tx, fence, progress.Checkpoint(4, {"x": [1]}, b"\0t"), 7.5, {"search_s": 2.0}
        )
    after = service_fakes.get(db, job.id)
    assert (after.model, after.elapsed_s, after.unscheduled_us) == ("shipped", 7.5, 100.0)
    assert after.breakdown == {"search_s": 2.0}
    with db.read() as tx:
        rounds = progress.rounds(tx, job.id)
        assert [(r.round, r.steps) for r in rounds] == [(0, steps), (1, [])]
        assert [r.round for r in progress.rounds(tx, job.id, task=0, after=0)] == [1]
        assert progress.trainings(tx, job.id)[0].loss_after is None
        assert progress.checkpoint(tx, job.id) == progress.Checkpoint(4, {"x": [1]}, b"\0t")
        (task,) = jobs.tasks(tx, job.id)
    assert (task.task_key, task.n_sketches, task.unscheduled_us) == ("key", 2, 100.0)
    with db.write() as tx:
        progress.save(tx, fence, progress.Checkpoint(8, {"x": [2]}, None), 9.0, {})
    with db.read() as tx:
        assert progress.checkpoint(tx, job.id) == progress.Checkpoint(8, {"x": [2]}, None)


def test_artifacts_replace_each_other_by_name(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db).fence
    new = artifacts.NewArtifact(
        name="a.zip", kind="bundle", media_type="application/zip", sha256="0" * 64, size_bytes=5
    )
    with db.write() as tx:
        artifacts.add(tx, fence, new)
        artifacts.add(tx, fence, dataclasses.replace(new, sha256="1" * 64))
        artifacts.store_code(tx, fence, 0, "schedule", "source")
    with db.read() as tx:
        assert [a.sha256 for a in artifacts.of_job(tx, job.id)] == ["1" * 64]
        assert artifacts.get(tx, job.id, "a.zip").size_bytes == 5
        assert jobs.code(tx, job.id, 0) == ("schedule", "source")
        with pytest.raises(errors.NotFound):
            artifacts.get(tx, job.id, "b.zip")
    other = service_fakes.create(db)
    second = service_fakes.claim(db).fence
    with db.write() as tx:
        artifacts.add(tx, second, dataclasses.replace(new, sha256="1" * 64))
        leases.succeed(tx, fence, "trials")
        leases.succeed(tx, second, "trials")
        assert control.delete(tx, job.id) == []  # the other job has the same content
        assert control.delete(tx, other.id) == ["1" * 64]


def test_keys_are_found_by_their_text_only(db: database.Database) -> None:
    with db.write() as tx:
        made = keys.create(tx, keys.NewKey(name="k", can_submit=True))
    assert made.text not in repr(made)
    secret = made.text.split("_", 2)[2]
    with db.read() as tx:
        assert keys.find(tx, made.text) == made.key
        wrong = [
            made.text[:-1], made.text + "x", "", "felix", "felix__", f"felix_{made.key.public}_",
            f"felix_{'0' * 12}_{secret}", f"other_{made.key.public}_{secret}", "felix_\0_é",
        ]  # fmt: skip
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
    with db.write() as tx:
        made = keys.create(tx, keys.NewKey(name="k"))
        token, _ = keys.log_in(tx, made.key.id, 60)
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
    with db.write() as tx:
        keys.log_out(tx, token)
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
    with db.write() as tx:
        workers.leave(tx, second)
    with db.read() as tx:
        gone, busy = workers.every(tx, stale_s=60)
        assert (busy.job_id, busy.is_alive, busy.n_trials) == (claimed.job.id, True, 2)
        assert busy.n_infrastructure == 1
        assert (gone.id, gone.is_alive, gone.job_id) == (second, False, None)
        assert not any(w.is_alive for w in workers.every(tx, stale_s=-60))
    with db.write() as tx:
        workers.beat(tx, second)
        assert all(w.is_alive for w in workers.every(tx, stale_s=60))


@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "\U0001f600 é"])
def test_any_text_can_be_written(db: database.Database, text: str) -> None:
    job = service_fakes.create(db, name=text)
    fence = service_fakes.claim(db).fence
    service_fakes.add(db, fence, service_fakes.new_trial(0, None, message=text))
    with db.write() as tx:
        progress.append_event(tx, fence, events.Type.WARNING, {"message": text})
    with db.read() as tx:
        assert "\0" not in trials.get(tx, job.id, 1).message
        assert len(events.after(tx, job.id)) == 4


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
