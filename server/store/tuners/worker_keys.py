"""Which nodes of a cluster may measure for the service, by the keys that they state."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models
from server.store import rows

#: Of the kinds of GPUs; a key may leave it out, as targets do ("h200").
_VENDOR = "nvidia-"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node: the kinds of its devices, none if it only builds, and the digest of its key."""

    name: str
    kinds: Sequence[str]
    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A node's key, if there is one of its digest, and why it may not measure; None if it may."""

    name: str
    key_id: int | None
    refusal: str | None


def judge(tx: orm.Session, nodes: Sequence[Node]) -> list[Judged]:
    """Look at the keys of nodes now."""
    key = models.Key
    stated = tx.execute(
        sa.select(key, key.expires_at <= columns.db_now()).where(
            key.secret_sha256.in_({node.key for node in nodes if node.key})
        )
    )
    found = {row.secret_sha256: (rows.Key.of(row), bool(is_over)) for row, is_over in stated}
    return [_judged(node, *found.get(node.key, (None, False))) for node in nodes]


def _judged(node: Node, key: rows.Key | None, is_over: bool) -> Judged:
    fault = _fault(node, key, is_over)
    if fault is None:
        return Judged(node.name, None if key is None else key.id, None)
    which = f" for {', '.join(node.kinds)}" if node.kinds else ""
    what = f"needs a key with the scope worker{which}: {fault}"
    return Judged(node.name, None if key is None else key.id, what)


def _fault(node: Node, key: rows.Key | None, is_over: bool) -> str | None:
    """What is wrong with a node's key; None: nothing."""
    if not node.key:
        return "it states none (FELIX_WORKER_KEY of `felix worker`)"
    if key is None:
        return "the one that it states is unknown"
    if key.revoked_at is not None:
        return f"its key {key.id} is revoked"
    if is_over:
        return f"its key {key.id} is expired"
    if not key.can_worker:
        return f"its key {key.id} lacks the scope"
    if not all(_is_of(kind, key.device_kinds) for kind in node.kinds):
        return f"its key {key.id} is for {', '.join(key.device_kinds)}"
    return None


def _is_of(kind: str, allowed: Collection[str]) -> bool:
    return kind in allowed or kind.removeprefix(_VENDOR) in allowed
