"""Tuners that are or were there: devices, versions, heartbeat, what they work on."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models
from server.store import rows

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
    tx.add(row)
    tx.flush()
    return row.id


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
    statement = sa.update(models.Worker).where(models.Worker.id == worker_id).values(**values)
    tx.execute(statement.execution_options(synchronize_session=False))
