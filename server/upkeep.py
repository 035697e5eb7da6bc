"""Loops that keep the store in order: jobs of lost tuners, files that are kept no longer.

Every tuner and API server reaps, every API server cleans. Several at once do no harm: rows being
reaped are skipped by the others, a job's row is locked while its files are removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import sqlalchemy as sa

from felix import errors as engine_errors
from server import logs, states
from server.database import database
from server.store import artifacts, blobs, leases

_log = logs.of(__name__)


def reap(db: database.Database, max_attempts: int) -> dict[int, states.State]:
    """End expired leases, once; see `leases.reap`."""
    with db.read() as tx:  # mostly there is none, and no need of a write lock
        if not leases.any_expired(tx):
            return {}
    with db.write() as tx:
        reaped = leases.reap(tx, max_attempts)
    for job_id, state in reaped.items():
        text = "the lease of job %d expired; it is %s now"
        _log.warning(text, job_id, state, action="reap", job=job_id, state=str(state))
    return reaped


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
        for sha256 in sorted(set(removed)):
            with db.write() as tx:
                artifacts.remove_content(tx, store, sha256)
        _log.info(
            "%d files of job %d are removed",
            len(removed),
            job_id,
            action="files_removed",
            job=job_id,
        )
    return job_ids


class Loop:
    """A thread that does something again and again; `close` ends it.

    Args:
        verb: what it does, `reap` or `clean`, in a word for logs.
        work: does it once. What the database or the blob store refuses is logged and tried again.
        every_s: between two times.
    """

    def __init__(self, verb: str, work: Callable[[], object], every_s: float) -> None:
        self._verb, self._work, self._every_s = verb, work, every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=verb, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self._work()
            except (sa.exc.SQLAlchemyError, engine_errors.FelixError) as error:
                action = f"{self._verb}_failed"
                _log.warning("cannot %s: %s", self._verb, error, action=action)
