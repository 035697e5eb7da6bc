"""Tuners that are or were there, their devices as last seen, nodes that may measure for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models
from server.store import rows, statements

#: What a tuner says of a device and viewers see.
_DEVICE_FIELDS = ("name", "kind", "target_keys", "target", "hardware", "model")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A tuner that begins; each device is {name, kind, target_keys, target, hardware, model}."""

    name: str
    host: str
    pid: int
    versions: dict[str, str]
    devices: list[dict[str, Any]]


def register(tx: orm.Session, new: NewWorker) -> int:
    """A tuner begins; its number."""
    now = columns.db_now()
    row = models.Worker(started_at=now, last_beat_at=now, **dataclasses.asdict(new))
    return statements.add(tx, row).id


def beat(tx: orm.Session, worker_id: int) -> None:
    """The tuner is alive."""
    _update(tx, worker_id, last_beat_at=columns.db_now(), stopped_at=None)


def tell(tx: orm.Session, worker_id: int, devices: list[dict[str, Any]]) -> None:
    """The tuner has these devices now."""
    _update(tx, worker_id, devices=devices)


def count_job(tx: orm.Session, worker_id: int) -> None:
    """The tuner claimed a job."""
    _update(tx, worker_id, n_jobs=models.Worker.n_jobs + 1)


def leave(tx: orm.Session, worker_id: int) -> None:
    """The tuner ends."""
    _update(tx, worker_id, stopped_at=columns.db_now(), last_beat_at=columns.db_now())


def every(tx: orm.Session, stale_s: float, limit: int = 200) -> list[rows.Worker]:
    """Tuners, newest first; one that has not beaten for `stale_s` seconds is not alive."""
    row = models.Worker
    alive = sa.and_(row.stopped_at.is_(None), row.last_beat_at > columns.db_now(-stale_s))
    tuners = tx.execute(
        sa.select(row, alive, sa.func.max(models.Job.id))
        .outerjoin(
            models.Job,
            sa.and_(models.Job.worker_id == row.id, models.Job.lease_token.is_not(None)),
        )
        .group_by(row.id)
        .order_by(row.id.desc())
        .limit(limit)
    )
    return [
        rows.Worker.of(worker, is_alive=bool(is_alive), job_id=job_id)
        for worker, is_alive, job_id in tuners
    ]


def missing(tuners: Iterable[rows.Worker], target_key: str) -> str | None:
    """What has to come before a job of this key can begin; None if nothing has to.

    Its words follow "waits for".
    """
    alive = [tuner for tuner in tuners if tuner.is_alive]
    there = [device for tuner in alive for device in tuner.devices]
    fitting = [each for each in there if target_key in each.get("target_keys", ())]
    faults = {str(each["name"]): each.get("fault") for each in fitting}
    if any(fault is None for fault in faults.values()):
        return None
    if not alive:
        return "a tuner: none is there"
    what = f"a device of {target_key}"
    if faults:
        return f"{what}: " + "; ".join(f"{name}: {fault}" for name, fault in faults.items())
    known = sorted({str(each["target_keys"][-1]) for each in there if each.get("target_keys")})
    return f"{what}: the tuners have {', '.join(known) or 'no device'}"


def alive_keys(tx: orm.Session, stale_s: float) -> set[str]:
    """The exact keys of devices whose tuners are alive."""
    alive = [tuner for tuner in every(tx, stale_s) if tuner.is_alive]
    keys = [device.get("target_keys") for tuner in alive for device in tuner.devices]
    return {str(of_device[-1]) for of_device in keys if of_device}


def devices(
    tuners: Iterable[rows.Worker], reports: Collection[rows.DeviceReport] = ()
) -> list[rows.Device]:
    """The devices of tuners, by kind and exact key, with what the tuners said of each."""
    by_key: dict[tuple[str, str], tuple[dict[str, Any], list[rows.Worker]]] = {}
    for tuner in tuners:
        for device in tuner.devices:
            key = (str(device["kind"]), str(device["target_keys"][-1]))
            by_key.setdefault(key, (device, []))[1].append(tuner)
    return [
        rows.Device(
            **{name: device[name] for name in _DEVICE_FIELDS},
            n_tuners_alive=len({tuner.id for tuner in owners if tuner.is_alive}),
            worker_ids=list(dict.fromkeys(tuner.id for tuner in owners)),
            reports=[report for report in reports if report.target_key == key],
        )
        for (_, key), (device, owners) in sorted(by_key.items(), key=lambda item: item[0])
    ]


def _update(tx: orm.Session, worker_id: int, **values: Any) -> None:
    statements.update(tx, models.Worker, models.Worker.id == worker_id, **values)


#: Reports of devices that nobody has seen for so long are removed, in seconds.
KEPT_S = 24 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A device now.

    Attributes:
        place: its name, which no other device of its tuner has.
        host: its machine.
        target_key: the exact key of what it measures.
        driver: its version.
        versions: of software on its machine.
        fault: why it measures nothing.
        queue: candidates that wait for it.
        n_measured: candidates that it measured in the last hour.
        n_failed: of them those that failed by its or its machine's fault.
        clock_ghz: its clock now.
        power_w: what it draws now.
    """

    place: str
    host: str
    target_key: str
    driver: str | None = None
    versions: dict[str, Any] = dataclasses.field(default_factory=dict)
    fault: str | None = None
    queue: int = 0
    n_measured: int = 0
    n_failed: int = 0
    clock_ghz: float | None = None
    power_w: float | None = None


def write_reports(tx: orm.Session, worker_id: int, seen: Sequence[Seen]) -> None:
    """A tuner sees these devices; what it said of others stays as it is, until it is old."""
    report = models.DeviceReport
    statements.delete(tx, report, report.seen_at < columns.db_now(-KEPT_S))
    is_again = report.place.in_([each.place for each in seen])
    statements.delete(tx, report, report.worker_id == worker_id, is_again)
    now = columns.db_now()
    for each in seen:
        tx.add(report(worker_id=worker_id, seen_at=now, **dataclasses.asdict(each)))


def reports_of(tx: orm.Session, worker_ids: Collection[int]) -> list[rows.DeviceReport]:
    """What these tuners said last, by place."""
    report = models.DeviceReport
    query = sa.select(report).where(report.worker_id.in_(worker_ids))
    ordered = query.order_by(report.place, report.worker_id)
    return [rows.DeviceReport.of(each) for each in tx.scalars(ordered)]


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
    which = f" for {', '.join(node.kinds)}" if node.kinds else ""
    refusal = None if fault is None else f"needs a key with the scope worker{which}: {fault}"
    return Judged(node.name, None if key is None else key.id, refusal)


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
