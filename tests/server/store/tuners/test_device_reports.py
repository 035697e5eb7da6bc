"""What tuners write about their devices."""

from __future__ import annotations

import sqlalchemy as sa

from server.database import columns, database, models
from server.store import tuners
from tests.support import service_fakes

A = tuners.Seen(place="cpu:0", host="h", target_key="llvm/a/b", versions={"felix": "1"})


def places(db: database.Database, *workers: int) -> dict[str, str | None]:
    with db.read() as tx:
        return {each.place: each.fault for each in tuners.reports_of(tx, workers)}


def test_a_device_has_one_report_a_tuner_the_last_one(db: database.Database) -> None:
    one, other = service_fakes.worker(db, "one"), service_fakes.worker(db, "other")
    sick = tuners.Seen(place="cuda:0", host="h", target_key="k", fault="too hot")
    for worker, seen in ((one, [A, sick]), (other, [A]), (one, [A])):
        with db.write() as tx:
            tuners.write_reports(tx, worker, seen)
    assert places(db, one) == {"cpu:0": None, "cuda:0": "too hot"}  # not seen again: it stays
    assert places(db, other) == {"cpu:0": None} and places(db) == {}
    with db.read() as tx:
        (report,) = tuners.reports_of(tx, [other])
    assert report.seen_at.tzinfo is not None and report.error_rate is None


def test_old_reports_are_removed(db: database.Database) -> None:
    worker = service_fakes.worker(db)
    with db.write() as tx:
        tuners.write_reports(tx, worker, [A])
        old = columns.db_now(-tuners.KEPT_S - 60)
        tx.execute(sa.update(models.DeviceReport).values(seen_at=old))
    with db.write() as tx:
        tuners.write_reports(tx, worker, [])
    assert places(db, worker) == {}
