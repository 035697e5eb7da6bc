"""What the store knows of tuners, and the table of jobs in any order, complete and steady."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
from typing import Any

import pytest
import sqlalchemy as sa

from felix.measure import readings
from felix.measure.cluster import tls
from server import errors
from server.database import columns, database, models
from server.store import control, job_lists, jobs, keys, rows, tuners
from server.tuner import reports
from server.tuner.cluster import link
from tests.support import service_fakes


def judged(db: database.Database, text: str, *kinds: str) -> str | None:
    """Why a node with a key may not measure on devices of these kinds."""
    stated = tuners.Node("box", kinds, tls.digest(text) if text else "")
    (one,) = service_fakes.read(db, tuners.judge, [stated])
    assert one.name == "box"
    return one.refusal


def made(db: database.Database, **fields: Any) -> keys.CreatedKey:
    return service_fakes.key(db, can_read=False, **fields)


@pytest.mark.parametrize("kind", ["h200", "nvidia-h200"])
def test_a_key_lets_devices_of_its_kinds_measure_and_builders(
    db: database.Database, kind: str
) -> None:
    key = made(db, can_worker=True, device_kinds=[kind, "znver4"])
    for there in (["nvidia-h200"], ["znver4"], ["nvidia-h200", "znver4"], []):
        assert judged(db, key.text, *there) is None
    said = judged(db, key.text, "nvidia-h100")
    assert said == (
        f"needs a key with the scope worker for nvidia-h100: its key {key.key.id} is for "
        f"{', '.join(sorted([kind, 'znver4']))}"
    )
    assert judged(db, key.text, "nvidia-h200", "nvidia-h100") is not None
    assert judged(db, key.text, "nvidia-h20") is not None


def test_what_is_no_such_key_is_told(db: database.Database) -> None:
    admin = made(db, can_admin=True)
    for text, fault in (
        ("", "for h1: it states none (FELIX_WORKER_KEY of `felix worker`)"),
        ("felix_0_x", "for h1: the one that it states is unknown"),
        (admin.text, f"for h1: its key {admin.key.id} lacks the scope"),
    ):
        assert judged(db, text, "h1") == f"needs a key with the scope worker {fault}"
    assert str(judged(db, "")).startswith("needs a key with the scope worker: it states none")


def test_a_key_that_ends_lets_nothing_measure(db: database.Database) -> None:
    key = made(db, can_worker=True, device_kinds=["h1"])
    service_fakes.write(db, keys.revoke, key.key.id)
    assert str(judged(db, key.text, "h1")).endswith(f"its key {key.key.id} is revoked")
    over = made(db, can_worker=True, device_kinds=["h1"], expires_s=-1.0)
    assert str(judged(db, over.text, "h1")).endswith(f"its key {over.key.id} is expired")


def test_nodes_are_judged_together(db: database.Database) -> None:
    key = made(db, can_worker=True, device_kinds=["h1"])
    digest = tls.digest(key.text)
    nodes = [
        tuners.Node("a", ["h1"], digest),
        tuners.Node("b", ["h1"], ""),
        tuners.Node("c", [], digest),
    ]
    said = service_fakes.read(db, tuners.judge, nodes)
    assert service_fakes.read(db, tuners.judge, []) == []
    assert [(each.name, each.key_id, each.refusal is None) for each in said] == [
        ("a", key.key.id, True),
        ("b", None, False),
        ("c", key.key.id, True),
    ]


def node(name: str, text: str = "") -> dict[str, Any]:
    return {"name": name, "kinds": ["h1"], "key": tls.digest(text) if text else ""}


def test_refusals_are_logged_once(db: database.Database, caplog: pytest.LogCaptureFixture) -> None:
    judge = link.Admission(db)
    for _ in range(3):
        assert str(judge.refusals([node("a")])["a"]).startswith("needs a key")
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and said[0].startswith("node a may not measure: it needs a key")


def test_use_is_noted_and_an_end_is_seen_at_once(db: database.Database) -> None:
    key = made(db, can_worker=True, device_kinds=["h1"])
    judge = link.Admission(db)
    assert judge.refusals([node("a", key.text), node("b")])["a"] is None
    with db.write() as tx:
        assert keys.get(tx, key.key.id).last_used_at is not None
        keys.revoke(tx, key.key.id)
    assert "is revoked" in str(judge.refusals([node("a", key.text)])["a"])


def test_while_the_database_is_away_what_it_said_holds(
    db: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = link.Admission(db)
    before = judge.refusals([node("a")])

    def fail(*_: Any) -> None:
        raise sa.exc.OperationalError("", {}, OSError("gone"))

    monkeypatch.setattr(tuners, "judge", fail)
    assert judge.refusals([node("a"), node("b")]) == before


A = tuners.Seen(place="cpu:0", host="h", target_key="llvm/a/b", versions={"felix": "1"})


def places(db: database.Database, *workers: int) -> dict[str, str | None]:
    return {each.place: each.fault for each in service_fakes.read(db, tuners.reports_of, workers)}


def test_a_device_has_one_report_a_tuner_the_last_one(db: database.Database) -> None:
    one, other = service_fakes.worker(db, "one"), service_fakes.worker(db, "other")
    sick = tuners.Seen(place="cuda:0", host="h", target_key="k", fault="too hot")
    for worker, seen in ((one, [A, sick]), (other, [A]), (one, [A])):
        service_fakes.write(db, tuners.write_reports, worker, seen)
    assert places(db, one) == {"cpu:0": None, "cuda:0": "too hot"}  # not seen again: it stays
    assert places(db, other) == {"cpu:0": None} and places(db) == {}
    (report,) = service_fakes.read(db, tuners.reports_of, [other])
    assert report.seen_at.tzinfo is not None and report.error_rate is None


def test_old_reports_are_removed(db: database.Database) -> None:
    worker = service_fakes.worker(db)
    with db.write() as tx:
        tuners.write_reports(tx, worker, [A])
        old = columns.db_now(-tuners.KEPT_S - 60)
        tx.execute(sa.update(models.DeviceReport).values(seen_at=old))
    service_fakes.write(db, tuners.write_reports, worker, [])
    assert places(db, worker) == {}


GOOD = dataclasses.asdict(readings.Condition("cpu:0", 1, 2, 1, "busy"))


def test_what_makes_sense_is_taken() -> None:
    assert reports.checked([GOOD]) == {"cpu:0": readings.Condition("cpu:0", 1, 2, 1, "busy")}


@pytest.mark.parametrize(
    "said",
    [
        [GOOD | {"queue": -1}],
        [GOOD | {"n_failed": 1.5}],
        [GOOD | {"queue": 10**12}],
        [GOOD | {"place": "x" * 2000}],
        [GOOD | {"fault": 5}],
        [GOOD | {"more": 1}],
        [5],
        5,
    ],
)
def test_what_makes_none_is_refused(said: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        reports.checked(said)


def test_a_device_is_reported_with_its_condition() -> None:
    device = {
        "place": "node:1",
        "host": "rack-2",
        "target_keys": ["cuda", "cuda/sm_90"],
        "fault": None,
        "versions": {"felix": "2"},
        "now": {"clock_ghz": float("nan"), "driver": "550"},
    }
    by_place = {"node:1": readings.Condition("node:1", 4, 10, 2, "throttled")}
    (seen,) = reports.seen([device, {"name": "of an older tuner"}], by_place, {})
    assert (seen.host, seen.target_key, seen.queue) == ("rack-2", "cuda/sm_90", 4)
    assert (seen.fault, seen.driver, seen.clock_ghz) == ("throttled", "550", None)
    (alone,) = reports.seen([device | {"fault": "silent"}], {}, {})
    assert (alone.fault, alone.n_measured) == ("silent", 0)


# ---------------------------------------------------------------- the sorted table of jobs


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
        listed += page.items
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
    last = first.items[-1]
    with db.write() as tx:  # the last row of the page goes, and the first one moves to the end
        control.cancel(tx, last.id) if last.state == "queued" else None
        control.delete(tx, last.id)
        moved = sa.update(models.Job).where(models.Job.id == first.items[0].id)
        tx.execute(moved.values(n_trials=0))
    with db.read() as tx:
        second = job_lists.sorted_page(
            tx, job_lists.Filter(), job_lists.Sort.TRIALS, True, 6, first.next
        )
    expected = [job.id for job in whole[6:12]]
    assert [job.id for job in second.items if job.id != first.items[0].id] == expected[:6]


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
