"""Takes jobs away from tuners that stopped renewing: a loop of its own, in every tuner and
API server. Several at once do no harm: rows being reaped are skipped by the others.
"""

from __future__ import annotations

import logging
import threading

import sqlalchemy as sa

from server.database import database
from server.store import leases

_log = logging.getLogger(__name__)


def reap(db: database.Database, max_attempts: int) -> list[leases.Reaped]:
    """End expired leases, once."""
    with db.read() as tx:  # mostly there is none, and no need of a write lock
        if not leases.any_expired(tx):
            return []
    with db.write() as tx:
        reaped = leases.reap(tx, max_attempts)
    for each in reaped:
        _log.warning(
            "the lease of job %d expired; it is %s now",
            each.job_id,
            each.state,
            extra={"action": "reap", "job": each.job_id, "state": str(each.state)},
        )
    return reaped


class Reaper:
    """The thread; `close` ends it."""

    def __init__(self, db: database.Database, every_s: float, max_attempts: int) -> None:
        self._db, self._every_s, self._max_attempts = db, every_s, max_attempts
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                reap(self._db, self._max_attempts)
            except sa.exc.SQLAlchemyError as error:
                _log.warning("reaping failed: %s", error, extra={"action": "reap_failed"})
