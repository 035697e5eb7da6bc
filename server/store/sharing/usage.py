"""What each key had of the tuners lately: seconds that count half after `HALF_LIFE_S`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models

#: After so many seconds without a tuner, a key counts as if it had half as much.
HALF_LIFE_S = 600.0


def charge(tx: orm.Session, key_id: int | None, seconds: float) -> None:
    """A key had a tuner for so many seconds; None: a job of no key."""
    if key_id is None:
        return
    key = models.Key
    query = sa.select(key.tuner_s, key.tuner_s_at, columns.db_now()).where(key.id == key_id)
    charged = tx.execute(query.with_for_update(of=key)).one_or_none()
    if charged is None:
        return
    total_s = _lately(*charged) + seconds
    changed = sa.update(key).where(key.id == key_id)
    tx.execute(
        changed.values(tuner_s=total_s, tuner_s_at=columns.db_now()).execution_options(
            synchronize_session=False
        )
    )


def by_key(tx: orm.Session) -> Mapping[int | None, float]:
    """Seconds of each key that had a tuner; those of no key have 0."""
    key = models.Key
    query = sa.select(key.id, key.tuner_s, key.tuner_s_at, columns.db_now())
    charged = tx.execute(query.where(key.tuner_s > 0))
    return {key_id: _lately(tuner_s, at, now) for key_id, tuner_s, at, now in charged}


def _lately(tuner_s: float, at: datetime.datetime | None, now: datetime.datetime) -> float:
    if at is None:
        return tuner_s
    age_s = max(0.0, (now - at).total_seconds())
    return float(tuner_s * 0.5 ** (age_s / HALF_LIFE_S))
