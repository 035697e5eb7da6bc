"""Devices as their tuners last saw them: health, queue, errors of the last hour, clock, power."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models
from server.store import rows

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


def write(tx: orm.Session, worker_id: int, seen: Sequence[Seen]) -> None:
    """A tuner sees these devices; what it said of others stays as it is, until it is old."""
    report = models.DeviceReport
    old = sa.delete(report).where(report.seen_at < columns.db_now(-KEPT_S))
    again = sa.delete(report).where(
        report.worker_id == worker_id, report.place.in_([each.place for each in seen])
    )
    for statement in (old, again):
        tx.execute(statement.execution_options(synchronize_session=False))
    now = columns.db_now()
    for each in seen:
        tx.add(report(worker_id=worker_id, seen_at=now, **dataclasses.asdict(each)))


def of_workers(tx: orm.Session, worker_ids: Collection[int]) -> list[rows.DeviceReport]:
    """What these tuners said last, by place."""
    report = models.DeviceReport
    query = sa.select(report).where(report.worker_id.in_(worker_ids))
    ordered = query.order_by(report.place, report.worker_id)
    return [rows.DeviceReport.of(each) for each in tx.scalars(ordered)]
