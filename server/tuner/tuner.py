"""A tuner: claims jobs, lets the engine work on them, stores what comes out.

    claim -> run (trials, events and checkpoints are written as they come) -> artifact -> end
      ^        |  lease renewed by the heart's thread, which brings orders
      +--------+  pause, cancel, leaving: put down within a round

Whatever happens to a tuner, its job's lease ends and another one goes on from the last record.
The end of a job is decided in the database, in one transaction with its event.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import socket
import tempfile
import threading
from typing import Any

import sqlalchemy as sa

from server import errors, reaper, settings, states
from server.database import database
from server.store import artifacts, blobs, leases, workers
from server.tuner import claimed_job as desks
from server.tuner import engine, heartbeat, retry

_log = logging.getLogger(__name__)

_Order = states.Order


class Tuner:
    """One process that tunes.

    Args:
        db: a database of the right schema.
        store: where artifacts go.
        worker: the engine, warm.
        chosen: durations and limits.
        name: how people know this tuner.
    """

    def __init__(
        self,
        db: database.Database,
        store: blobs.BlobStore,
        worker: engine.Engine,
        chosen: settings.Settings,
        name: str | None = None,
    ) -> None:
        self._db, self._store, self._engine, self._chosen = db, store, worker, chosen
        #: set to end after putting down the current job
        self.leaving = threading.Event()
        devices = worker.devices()
        self._target_keys = sorted({key for device in devices for key in device["target_keys"]})
        host, pid = socket.gethostname(), os.getpid()
        new = workers.NewWorker(
            name=name or f"{host}-{pid}", host=host, pid=pid,
            versions=worker.versions(), devices=devices,
        )  # fmt: skip
        with db.write() as tx:
            self.worker_id = workers.register(tx, new)
        self._heart = heartbeat.Heart(db, self.worker_id, chosen.beat_s, chosen.lease_s)
        self._reaper = reaper.Reaper(db, chosen.reap_s, chosen.max_attempts)
        _log.info(
            "tuner %d is ready for %s", self.worker_id, ", ".join(self._target_keys),
            extra={"action": "ready", "worker": self.worker_id},
        )  # fmt: skip

    def run(self) -> None:
        """Work until `leaving` is set."""
        while not self.leaving.is_set():
            if not self.work_once():
                self.leaving.wait(self._chosen.poll_s)

    def work_once(self) -> bool:
        """Work on one job, if there is one; whether there was."""
        try:
            with self._db.write() as tx:
                claim = leases.claim(tx, self.worker_id, self._target_keys, self._chosen.lease_s)
                if claim is not None:
                    workers.count_job(tx, self.worker_id)
        except sa.exc.SQLAlchemyError as error:
            _log.warning("cannot look for work: %s", error, extra={"action": "claim_failed"})
            return False
        if claim is None:
            return False
        with self._heart.watch(claim.fence) as watch:
            self._work(desks.Desk(self._db, claim, watch, self.leaving))
        return True

    def close(self) -> None:
        """End threads and the engine; say goodbye."""
        self._heart.close()
        self._reaper.close()
        self._engine.close()
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._db.write() as tx:
            workers.leave(tx, self.worker_id)

    def _work(self, desk: desks.Desk) -> None:
        job = desk.job
        said: dict[str, Any] = {"job": job.id, "worker": self.worker_id}
        _log.info("job %d: begin", job.id, extra={"action": "begin", **said})
        try:
            state = self._attempt(desk)
        except errors.LeaseLost:
            _log.warning("job %d: lease lost", job.id, extra={"action": "lease_lost", **said})
            return
        except sa.exc.SQLAlchemyError as error:  # the lease will expire
            _log.error("job %d: %s", job.id, error, extra={"action": "store_failed", **said})
            return
        _log.info("job %d: %s", job.id, state, extra={"action": "end", "state": state, **said})

    def _attempt(self, desk: desks.Desk) -> states.State:
        """Run the job and end it; its state then.

        Raises:
            LeaseLost
        """
        try:
            outcome = self._engine.run(desk)
            if outcome.reason == "interrupted" and desk.order is not _Order.STOP:
                return desk.write(lambda tx: leases.put_down(tx, desk.fence))
            if outcome.failure is not None:
                failure = outcome.failure
                return desk.write(
                    lambda tx: leases.fail(tx, desk.fence, "no_schedule", failure, None)
                )
            self._deliver(desk, outcome)
        except (errors.LeaseLost, sa.exc.SQLAlchemyError):
            raise
        except Exception as error:  # the edge between a job and the process
            return self._failed(desk, error)
        reason = "stopped" if outcome.reason == "interrupted" else outcome.reason
        return desk.write(lambda tx: leases.succeed(tx, desk.fence, reason))

    def _deliver(self, desk: desks.Desk, outcome: engine.Outcome) -> None:
        """Make the artifact; the blob first, the row second."""
        with tempfile.TemporaryDirectory(prefix="felix-artifact-") as scratch:
            path = pathlib.Path(scratch, f"felix-job-{desk.job.id}.zip")
            made = self._engine.export(desk, outcome, path)
            stored = self._store.put(path)
        new = artifacts.NewArtifact(
            name=path.name,
            kind="bundle",
            media_type="application/zip",
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
        )

        def write(tx: Any) -> None:
            for code in made:
                artifacts.keep_code(tx, desk.fence, code.task, code.schedule, code.source)
            artifacts.add(tx, desk.fence, new)

        desk.write(write)

    def _failed(self, desk: desks.Desk, error: Exception) -> states.State:
        decision = retry.decide(error, desk.attempts, self._chosen.max_attempts)
        _log.error(
            "job %d: %s: %s", desk.job.id, decision.error, decision.message, exc_info=error,
            extra={"action": "failed", "job": desk.job.id, "error": decision.error},
        )  # fmt: skip
        fence, again_s = desk.fence, decision.retry_after_s
        said = (decision.error, decision.message)
        return desk.write(lambda tx: leases.fail(tx, fence, *said, again_s))
