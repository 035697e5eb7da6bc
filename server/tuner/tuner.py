"""A tuner: claims jobs, lets the engine work on them, stores the results.

    claim -> run (trials, events and checkpoints are written as they come) -> artifact -> end
      ^        |  lease renewed by the heartbeat's thread, which brings instructions
      +--------+  pause, cancel, leaving, another key's turn: released within seconds

Whatever happens to a tuner, its job's lease ends and another one goes on from the last record.
The end of a job is decided in the database, in one transaction with its event.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import socket
import tempfile
import threading
from typing import Any

import sqlalchemy as sa

from felix import errors as engine_errors
from server import errors, logs, settings, states, upkeep
from server.database import database
from server.store import artifacts, blobs, leases, networks, rows, tuners
from server.tuner import claimed_job, engine, heartbeat

_log = logs.of(__name__)

#: Why a job goes back into the queue by itself.
YIELDED = "another key's job had waited for its turn"


class Tuner:
    """One process that tunes.

    Args:
        db: a database of the right schema.
        store: where artifacts go.
        worker: the engine, warm.
        service_settings: durations and limits.
        name: how people know this tuner.
    """

    def __init__(
        self,
        db: database.Database,
        store: blobs.BlobStore,
        worker: engine.Engine,
        service_settings: settings.Settings,
        name: str | None = None,
    ) -> None:
        self._db, self._store, self._engine, self._settings = db, store, worker, service_settings
        #: set to end after releasing the current job
        self.leaving = threading.Event()
        host, pid = socket.gethostname(), os.getpid()
        new = tuners.NewWorker(
            name=name or f"{host}-{pid}",
            host=host,
            pid=pid,
            versions=worker.versions(),
            devices=worker.devices(),
        )
        with db.write() as tx:
            self.worker_id = tuners.register(tx, new)
        self._heartbeat = heartbeat.Heartbeat(
            db,
            self.worker_id,
            service_settings.beat_s,
            service_settings.lease_s,
            worker.devices,
            worker.reports,
        )
        reap = functools.partial(upkeep.reap, db, service_settings.max_attempts)
        self._reaping = upkeep.Loop("reap", reap, service_settings.reap_s)
        keys = ", ".join(self._target_keys()) or "nothing"
        _log.info(
            "tuner %d is ready for %s", self.worker_id, keys, action="ready", worker=self.worker_id
        )

    def run(self) -> None:
        """Work until `leaving` is set."""
        while not self.leaving.is_set():
            if not self.work_once():
                self.leaving.wait(self._settings.poll_s)

    def work_once(self) -> bool:
        """Work on one job, if there is one and the engine is ready; whether there was."""
        if not self._engine.make_ready() or not (target_keys := self._target_keys()):
            return False
        try:
            with self._db.write() as tx:
                claim = leases.claim(tx, self.worker_id, target_keys, self._settings.lease_s)
                if claim is not None:
                    tuners.count_job(tx, self.worker_id)
        except sa.exc.SQLAlchemyError as error:
            _log.warning("cannot claim a job: %s", error, action="claim_failed")
            return False
        if claim is None:
            return False
        with self._heartbeat.monitor(claim.fence, self._sharing(claim.job)) as monitor:
            self._work(claimed_job.ClaimedJob(self._db, claim, monitor, self.leaving, self._store))
        return True

    def _sharing(self, job: rows.Job) -> heartbeat.Sharing:
        """How the job shares this tuner; its slice doubles with each claim that gave nothing."""
        slice_s = self._settings.slice_s * 2.0 ** (job.attempts - 1)
        keys = self._target_keys()
        return heartbeat.Sharing(key_id=job.key_id, target_keys=keys, slice_s=slice_s)

    def _target_keys(self) -> list[str]:
        """What can be measured now: a cluster's devices come and go."""
        return sorted(
            {
                key
                for device in self._engine.devices()
                if device.get("fault") is None
                for key in device["target_keys"]
            }
        )

    def close(self) -> None:
        """End the threads and the engine; record that this tuner ended."""
        self._heartbeat.close()
        self._reaping.close()
        self._engine.close()
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._db.write() as tx:
            tuners.leave(tx, self.worker_id)

    def _work(self, claimed: claimed_job.ClaimedJob) -> None:
        job = claimed.job
        log_fields: dict[str, Any] = {"job": job.id, "worker": self.worker_id}
        _log.info("job %d: begin", job.id, action="begin", **log_fields)
        try:
            state = self._attempt(claimed)
        except errors.LeaseLost:
            _log.warning("job %d: lease lost", job.id, action="lease_lost", **log_fields)
            return
        except sa.exc.SQLAlchemyError as error:  # the lease will expire
            _log.error("job %d: %s", job.id, error, action="store_failed", **log_fields)
            return
        _log.info("job %d: %s", job.id, state, action="end", state=state, **log_fields)

    def _attempt(self, claimed: claimed_job.ClaimedJob) -> states.State:
        """Run the job and end it; its state then.

        Raises:
            LeaseLost
        """
        try:
            outcome = self._engine.run(claimed)
            if (
                outcome.reason == "interrupted"
                and claimed.instruction is not states.Instruction.STOP
            ):
                return self._release(claimed)
            has_artifact = self._deliver(claimed, outcome)
            if outcome.failure is not None and not has_artifact:
                failure = outcome.failure
                return claimed.write(
                    lambda tx: leases.fail(tx, claimed.fence, "no_schedule", failure, None)
                )
        except errors.Cancelled:
            return self._release(claimed)
        except engine_errors.NoDevice as error:
            return self._put_back(claimed, str(error))
        except (errors.LeaseLost, sa.exc.SQLAlchemyError):
            raise
        except Exception as error:  # the edge between a job and the process
            return self._failed(claimed, error)
        reason = "stopped" if outcome.reason == "interrupted" else outcome.reason
        return claimed.write(lambda tx: leases.succeed(tx, claimed.fence, reason))

    def _release(self, claimed: claimed_job.ClaimedJob) -> states.State:
        """Put the job down; a turn without a trial counts, so that the next one is longer."""
        yields = claimed.instruction is states.Instruction.YIELD
        is_attempt = yields and not claimed.has_progress
        payload = {"yielded": True, "message": YIELDED} if yields else {}
        return claimed.write(
            lambda tx: leases.release(tx, claimed.fence, payload, is_attempt=is_attempt)
        )

    def _put_back(self, claimed: claimed_job.ClaimedJob, why: str) -> states.State:
        """Let the job wait for a device; that is no failed attempt."""
        _log.warning(
            "job %d waits: %s", claimed.job.id, why, action="no_device", job=claimed.job.id
        )
        payload = {"no_device": True, "message": why}
        return claimed.write(lambda tx: leases.release(tx, claimed.fence, payload))

    def _deliver(self, claimed: claimed_job.ClaimedJob, outcome: engine.Outcome) -> bool:
        """Make the artifacts that the job is to have; whether there is one.

        A network is built, too, if time did not suffice for any schedule.
        """
        has_schedule = outcome.failure is None
        if has_schedule:
            self._deliver_bundle(claimed, outcome)
        elif outcome.reason != "seconds":
            return False
        has_network = claimed.read(lambda tx: networks.n_groups(tx, claimed.job.id)) > 0
        is_built = has_network and self._deliver_network(claimed, outcome)
        return has_schedule or is_built

    def _deliver_bundle(self, claimed: claimed_job.ClaimedJob, outcome: engine.Outcome) -> None:
        """Make the artifact of the tasks; the blob first, the row second."""
        with tempfile.TemporaryDirectory(prefix="felix-artifact-") as scratch:
            path = pathlib.Path(scratch, f"felix-job-{claimed.job.id}.zip")
            codes = self._engine.export(claimed, outcome, path)
            new = self._stored(path, "bundle")

            def write(tx: Any) -> None:
                for code in codes:
                    artifacts.store_code(tx, claimed.fence, code)
                artifacts.keep_content(tx, self._store, new.sha256, path)
                artifacts.add(tx, claimed.fence, new)

            claimed.write(write)

    def _deliver_network(self, claimed: claimed_job.ClaimedJob, outcome: engine.Outcome) -> bool:
        """Build the network; whether it is built. Else nothing but its artifact is missing."""
        with tempfile.TemporaryDirectory(prefix="felix-artifact-") as scratch:
            path = pathlib.Path(scratch, f"felix-job-{claimed.job.id}-network.zip")
            try:
                built = self._engine.build_network(claimed, outcome, path)
            except (errors.Cancelled, errors.LeaseLost, sa.exc.SQLAlchemyError):
                raise
            except Exception as error:  # the edge between a job and the process
                failure = str(error) or type(error).__name__
                _log.warning(
                    "job %d: no network: %s",
                    claimed.job.id,
                    failure,
                    action="network_failed",
                    job=claimed.job.id,
                )
                claimed.write(lambda tx: networks.fail(tx, claimed.fence, failure))
                return False
            new = self._stored(path, "network")

            def write(tx: Any) -> None:
                artifacts.keep_content(tx, self._store, new.sha256, path)
                artifacts.add(tx, claimed.fence, new)
                networks.finish(tx, claimed.fence, built)

            claimed.write(write)
            return True

    def _stored(self, path: pathlib.Path, kind: str) -> artifacts.NewArtifact:
        """A zip as an artifact whose content is in the blob store."""
        stored = self._store.put(path)
        return artifacts.NewArtifact(
            name=path.name,
            kind=kind,
            media_type="application/zip",
            sha256=stored.sha256,
            size_bytes=stored.size_bytes,
        )

    def _failed(self, claimed: claimed_job.ClaimedJob, error: Exception) -> states.State:
        decision = decide(error, claimed.attempts, self._settings.max_attempts)
        _log.error(
            "job %d: %s: %s",
            claimed.job.id,
            decision.error,
            decision.message,
            exc_info=error,
            action="failed",
            job=claimed.job.id,
            error=decision.error,
        )
        return claimed.write(
            lambda tx: leases.fail(
                tx, claimed.fence, decision.error, decision.message, decision.retry_after_s
            )
        )


#: Errors that a later attempt may not meet.
PASSING = (
    engine_errors.MeasureError,
    engine_errors.OutputError,
    errors.BlobError,
    OSError,
    MemoryError,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What to write about a failed attempt; `retry_after_s` None: never again."""

    error: str
    message: str
    retry_after_s: float | None


def decide(error: BaseException, attempts: int, max_attempts: int) -> Decision:
    """What to do after attempt number `attempts` (from 1) ended with this error.

    Errors of the workload stay what they are however often they are tried. Errors of the machine
    (disk, blob store, measuring processes) may pass: the job is tried again, later each time,
    and by another tuner if there is one.
    """
    message = " ".join(str(error).split())[:2000] or type(error).__name__
    is_ours = not isinstance(error, engine_errors.FelixError)
    if not isinstance(error, PASSING) and not is_ours:
        return Decision(type(error).__name__, message, None)
    if is_ours:
        message = f"{type(error).__name__}: {message}"
    if attempts >= max_attempts:
        return Decision("infrastructure", f"{message} (attempt {attempts}, the last)", None)
    return Decision("infrastructure", message, min(60.0, 2.0**attempts))
