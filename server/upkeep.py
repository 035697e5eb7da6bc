"""Loops that keep the store in order: jobs of lost tuners, files that are kept no longer.

The reaper runs in every tuner and API server, the janitor in every API server. Several at once do
no harm: rows being reaped are skipped by the others, a job's row is locked while its files are
removed.
"""

from __future__ import annotations

import logging
import threading

import sqlalchemy as sa

from felix import errors as engine_errors
from server.database import database
from server.store import artifacts, blobs, leases

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


def clean(db: database.Database, store: blobs.BlobStore, default_days: int | None) -> list[int]:
    """Remove the files of jobs that ended too long ago, and contents that no file names any more.

    Args:
        default_days: how long files stay in projects that do not say; None: for ever.

    Returns:
        The jobs whose files were removed.
    """
    with db.read() as tx:
        job_ids = artifacts.expired_jobs(tx, default_days)
    for job_id in job_ids:
        with db.write() as tx:
            removed = artifacts.remove_files(tx, job_id)
        for sha256 in sorted(removed.contents):
            with db.write() as tx:
                artifacts.remove_content(tx, store, sha256)
        _log.info(
            "%d files of job %d are removed",
            len(removed.names),
            job_id,
            extra={"action": "files_removed", "job": job_id},
        )
    return job_ids


class Janitor:
    """The thread; `close` ends it."""

    def __init__(
        self,
        db: database.Database,
        store: blobs.BlobStore,
        every_s: float,
        default_days: int | None,
    ) -> None:
        self._db, self._store = db, store
        self._every_s, self._default_days = every_s, default_days
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                clean(self._db, self._store, self._default_days)
            except (sa.exc.SQLAlchemyError, engine_errors.FelixError) as error:
                _log.warning("cleaning failed: %s", error, extra={"action": "clean_failed"})
