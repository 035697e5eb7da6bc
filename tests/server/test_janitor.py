"""Files that are kept no longer, contents that several jobs share, space that is used up."""

from __future__ import annotations

import datetime
import pathlib
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from server import errors, upkeep
from server.database import database, models
from server.store import artifacts, blobs, control, events, jobs, projects, rows
from tests.server.conftest import on_both_databases
from tests.support import api_rows, service_fakes


@pytest.fixture
def store(tmp_path: pathlib.Path) -> blobs.LocalStore:
    return blobs.LocalStore(tmp_path / "blobs")


def finished(
    db: database.Database, store: blobs.BlobStore, days_ago: float, **changes: Any
) -> rows.Job:
    """A job that ended so long ago, with an artifact."""
    job = api_rows.finished(db, store, **changes)
    with db.write() as tx:
        row = tx.get(models.Job, job.id)
        assert row is not None and row.finished_at is not None
        row.finished_at -= datetime.timedelta(days=days_ago)
    return job


def files(db: database.Database, job: rows.Job) -> list[str]:
    return [artifact.name for artifact in service_fakes.read(db, artifacts.of_job, job.id)]


def limit(db: database.Database, **limits: Any) -> None:
    service_fakes.write(db, projects.change, projects.DEFAULT, **limits)


def stored(store: blobs.LocalStore) -> int:
    return sum(path.is_file() for path in store.folder.rglob("*"))


def test_files_stay_for_ever_unless_someone_says_otherwise(
    db: database.Database, store: blobs.LocalStore
) -> None:
    old = finished(db, store, 10_000)
    assert upkeep.clean(db, store, None) == [] and files(db, old) == ["job.zip"]
    assert upkeep.clean(db, store, 10_001) == [] and upkeep.clean(db, store, 9_999) == [old.id]


def test_old_files_go_and_the_rest_of_the_job_stays(
    db: database.Database, store: blobs.LocalStore
) -> None:
    limit(db, retention_days=30)
    old, recent = finished(db, store, 31), finished(db, store, 29)
    tagged = finished(db, store, 31, tags=(artifacts.KEEP_TAG,))
    assert upkeep.clean(db, store, 1) == [old.id]  # the project's days count, not the service's
    assert files(db, old) == [] and files(db, recent) == files(db, tagged) == ["job.zip"]
    assert stored(store) == 1  # all three have the same content
    now = service_fakes.get(db, old.id)
    assert (now.state, now.n_trials, now.best_us) == (old.state, old.n_trials, old.best_us)
    last = api_rows.all_events(db, old.id)[-1]
    assert last.type == events.Type.REMOVED
    assert last.payload == {"names": ["job.zip"], "size_bytes": len(api_rows.CONTENT)}
    assert upkeep.clean(db, store, 1) == []


def test_a_content_goes_with_its_last_file(db: database.Database, store: blobs.LocalStore) -> None:
    jobs_ = [finished(db, store, 40) for _ in range(2)]
    service_fakes.write(db, control.change, jobs_[1].id, tags=[artifacts.KEEP_TAG])
    upkeep.clean(db, store, 30)
    assert stored(store) == 1
    service_fakes.write(db, control.change, jobs_[1].id, tags=[])
    upkeep.clean(db, store, 30)
    assert stored(store) == 0


def test_jobs_that_have_not_ended_keep_their_files(
    db: database.Database, store: blobs.LocalStore
) -> None:
    job = service_fakes.create(db)
    new = service_fakes.artifact(service_fakes.put(store, b"a model"), "input", "input")
    with db.write() as tx:
        artifacts.attach(tx, job.id, new)
        tx.execute(
            sa.update(models.Job).values(
                created_at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
            )
        )
    assert upkeep.clean(db, store, 1) == []
    with db.write() as tx:
        assert artifacts.remove_files(tx, job.id) == []  # even if it is asked to
    assert files(db, job) == ["input"]


@on_both_databases
def test_a_content_that_is_removed_while_it_is_stored_again_is_there(
    db: database.Database, store: blobs.LocalStore, tmp_path: pathlib.Path
) -> None:
    """The race: the content is stored, the last old file of it goes, then the new row is made."""
    old = finished(db, store, 40)
    new_job = service_fakes.create(db)
    path = tmp_path / "again"
    path.write_bytes(api_rows.CONTENT)
    content = store.put(path)
    assert upkeep.clean(db, store, 30) == [old.id] and stored(store) == 0
    new = service_fakes.artifact(content, "again", "bundle")
    with db.write() as tx:
        artifacts.keep_content(tx, store, content.sha256, path)
        artifacts.attach(tx, new_job.id, new)
    assert b"".join(store.read(content.sha256)) == api_rows.CONTENT


@on_both_databases
def test_removing_waits_for_whoever_is_making_a_row(
    db: database.Database, store: blobs.LocalStore, tmp_path: pathlib.Path
) -> None:
    job = service_fakes.create(db)
    path = tmp_path / "file"
    path.write_bytes(b"content")
    content = store.put(path)
    outcome = []

    def remove() -> None:
        outcome.append(service_fakes.write(db, artifacts.remove_content, store, content.sha256))

    remover = threading.Thread(target=remove)
    with db.write() as tx:
        artifacts.keep_content(tx, store, content.sha256, path)
        remover.start()
        remover.join(0.3)
        assert outcome == []  # it waits
        new = service_fakes.artifact(content, "f", "input")
        artifacts.attach(tx, job.id, new)
    remover.join(20.0)
    assert outcome == [False] and store.has(content.sha256)


def test_a_full_project_takes_no_more_files(
    db: database.Database, store: blobs.LocalStore
) -> None:
    size = len(api_rows.CONTENT)
    key = service_fakes.key(db, can_submit=True).key
    for _ in range(3):  # the same content counts once
        finished(db, store, 0, key_id=key.id)
    quota = jobs.Quota(max_running_jobs=10, max_trials=100)
    assert service_fakes.read(db, projects.usage, projects.DEFAULT) == projects.Usage(0, size)
    limit(db, max_bytes=size + 5)
    service_fakes.write(db, jobs.create, service_fakes.new_job(), key.id, quota=quota, n_bytes=5)
    with pytest.raises(errors.StorageFull, match="no room for 6 more"), db.write() as tx:
        jobs.create(tx, service_fakes.new_job(), key.id, quota=quota, n_bytes=6)
    assert errors.StorageFull.status == 507


def test_a_project_limits_the_jobs_of_all_its_keys(db: database.Database) -> None:
    limit(db, max_running_jobs=2, max_trials=50)
    quota = jobs.Quota(max_running_jobs=10, max_trials=100)
    numbers = [service_fakes.key(db).key.id for _ in range(3)]
    for number in numbers[:2]:
        service_fakes.write(db, jobs.create, service_fakes.new_job(), number, quota=quota)
    with pytest.raises(errors.QuotaExceeded, match="project has 2 jobs"), db.write() as tx:
        jobs.create(tx, service_fakes.new_job(), numbers[2], quota=quota)
    with pytest.raises(errors.QuotaExceeded, match="50 a job of this project"), db.write() as tx:
        jobs.create(tx, service_fakes.new_job(trials=51), numbers[2], quota=quota)


@on_both_databases
def test_two_requests_do_not_both_take_the_last_place(db: database.Database) -> None:
    limit(db, max_running_jobs=1)
    quota = jobs.Quota(max_running_jobs=10, max_trials=100)
    numbers = [service_fakes.key(db).key.id for _ in range(4)]
    refused = []

    def submit(number: int) -> None:
        try:
            service_fakes.write(db, jobs.create, service_fakes.new_job(), number, quota=quota)
        except errors.QuotaExceeded:
            refused.append(number)

    threads = [threading.Thread(target=submit, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
