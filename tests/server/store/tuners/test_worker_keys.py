"""Which nodes of a cluster may measure, by the keys that they state."""

from __future__ import annotations

from typing import Any

import pytest

from felix.measure.cluster import worker_key
from server.database import database
from server.store import keys, tuners


def judged(db: database.Database, text: str, *kinds: str) -> str | None:
    """Why a node with a key may not measure on devices of these kinds."""
    stated = tuners.Node("box", kinds, worker_key.digest(text) if text else "")
    with db.read() as tx:
        (one,) = tuners.judge(tx, [stated])
    assert one.name == "box"
    return one.refusal


def made(db: database.Database, **fields: Any) -> keys.Made:
    with db.write() as tx:
        return keys.create(tx, keys.NewKey(name="box", can_read=False, **fields))


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
    with db.write() as tx:
        keys.revoke(tx, key.key.id)
    assert str(judged(db, key.text, "h1")).endswith(f"its key {key.key.id} is revoked")
    over = made(db, can_worker=True, device_kinds=["h1"], expires_s=-1.0)
    assert str(judged(db, over.text, "h1")).endswith(f"its key {over.key.id} is expired")


def test_nodes_are_judged_together(db: database.Database) -> None:
    key = made(db, can_worker=True, device_kinds=["h1"])
    digest = worker_key.digest(key.text)
    nodes = [
        tuners.Node("a", ["h1"], digest),
        tuners.Node("b", ["h1"], ""),
        tuners.Node("c", [], digest),
    ]
    with db.read() as tx:
        said = tuners.judge(tx, nodes)
        assert tuners.judge(tx, []) == []
    assert [(each.name, each.key_id, each.refusal is None) for each in said] == [
        ("a", key.key.id, True),
        ("b", None, False),
        ("c", key.key.id, True),
    ]
