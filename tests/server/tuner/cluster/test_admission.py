"""What a tuner says of nodes that state keys, while its database answers and while it does not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa

from felix.measure.cluster import worker_key
from server.database import database
from server.store import keys, tuners
from server.tuner.cluster import admission


def node(name: str, text: str = "") -> dict[str, Any]:
    return {"name": name, "kinds": ["h1"], "key": worker_key.digest(text) if text else ""}


def test_refusals_are_logged_once(db: database.Database, caplog: pytest.LogCaptureFixture) -> None:
    judge = admission.Admission(db)
    for _ in range(3):
        assert str(judge.refusals([node("a")])["a"]).startswith("needs a key")
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and said[0].startswith("node a may not measure: it needs a key")


def test_use_is_noted_and_an_end_is_seen_at_once(db: database.Database) -> None:
    new = keys.NewKey(name="box", can_read=False, can_worker=True, device_kinds=["h1"])
    with db.write() as tx:
        key = keys.create(tx, new)
    judge = admission.Admission(db)
    assert judge.refusals([node("a", key.text), node("b")])["a"] is None
    with db.write() as tx:
        assert keys.get(tx, key.key.id).last_used_at is not None
        keys.revoke(tx, key.key.id)
    assert "is revoked" in str(judge.refusals([node("a", key.text)])["a"])


def test_while_the_database_is_away_what_it_said_holds(
    db: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = admission.Admission(db)
    before = judge.refusals([node("a")])

    def fail(*_: Any) -> None:
        raise sa.exc.OperationalError("", {}, OSError("gone"))

    monkeypatch.setattr(tuners, "judge", fail)
    assert judge.refusals([node("a"), node("b")]) == before
