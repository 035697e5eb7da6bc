"""A job that this tuner has claimed: fenced writes and the instruction of the moment.

`ClaimedJob.write` runs a verb of the store in a transaction of its own and tries again while the
database cannot be reached, until the lease must be lost. Records and checkpoints go to the
database, so that another tuner on another machine can go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from felix import errors as engine_errors
from server import errors, states
from server.database import database
from server.store import artifacts, blobs, events, jobs, leases, progress, reuse, rows, trials
from server.tuner import heartbeat

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: Between two tries to reach the database.
RETRY_S = 0.5

#: Failures of infrastructure one after the other, after which the machine is at fault.
MAX_INFRASTRUCTURE = 24


class ClaimedJob:
    """One claimed job.

    Args:
        db: the database.
        claim: the job and the right to write to it.
        monitor: of the job's lease; has the instruction for the tuner.
        leaving: set when the tuner process has to end.
        store: has the file that the job was made from.
    """

    def __init__(
        self,
        db: database.Database,
        claim: leases.Claim,
        monitor: heartbeat.LeaseMonitor,
        leaving: threading.Event,
        store: blobs.BlobStore,
    ) -> None:
        self.job: rows.Job = claim.job
        self.fence = claim.fence
        self._db, self._monitor, self._leaving = db, monitor, leaving
        self._store = store
        self._n_infrastructure = 0
        self._has_progress = False

    @property
    def instruction(self) -> states.Instruction:
        """What the tuner has to do."""
        return self._monitor.instruction

    @property
    def attempts(self) -> int:
        """Claims in a row without progress, this one included."""
        return 1 if self._has_progress else self.job.attempts

    @property
    def has_progress(self) -> bool:
        """Whether this claim gave a new trial."""
        return self._has_progress

    @property
    def is_leaving(self) -> bool:
        """Whether the tuner's process has to end."""
        return self._leaving.is_set()

    def should_stop(self) -> bool:
        """Whether the run has to end, for whatever reason."""
        return (
            self._leaving.is_set() or self._monitor.instruction is not states.Instruction.CONTINUE
        )

    def should_yield(self) -> bool:
        """Whether it is another key's turn."""
        return self._monitor.instruction is states.Instruction.YIELD

    def begin_step(self, step: str) -> None:
        """Nobody watches an engine in this process (`engine.JobAccess.begin_step`)."""

    def write(self, verb: Callable[[orm.Session], T]) -> T:
        """A transaction of its own.

        Raises:
            LeaseLost: the job is another tuner's, or the database was out of reach too long.
        """
        while True:
            try:
                with self._db.write() as tx:
                    return verb(tx)
            except sa.exc.OperationalError as error:
                _log.warning(
                    "cannot write to the database: %s", error, extra={"action": "write_failed"}
                )
                if self._monitor.instruction is states.Instruction.LEASE_LOST:
                    raise errors.LeaseLost("the database was out of reach for too long") from error
                time.sleep(RETRY_S)

    def read(self, verb: Callable[[orm.Session], T]) -> T:
        """A transaction that only reads."""
        with self._db.read() as tx:
            return verb(tx)

    def add_trial(self, new: trials.NewTrial) -> trials.Written:
        """Write a trial.

        Raises:
            LeaseLost
            MeasureError: this machine fails to measure anything.
        """
        written = self.write(lambda tx: trials.append(tx, self.fence, new))
        is_infrastructure = new.error == trials.INFRASTRUCTURE
        self._n_infrastructure = self._n_infrastructure + 1 if is_infrastructure else 0
        self._has_progress = self._has_progress or not is_infrastructure
        if self._n_infrastructure >= MAX_INFRASTRUCTURE:
            raise engine_errors.MeasureError(
                f"the last {self._n_infrastructure} measurements failed and none was the "
                f"candidate's fault: {new.message}"
            )
        return written

    def add_remeasurement(self, new: trials.NewTrial) -> None:
        """Write a longer measurement of a candidate at the end of the run.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: trials.remeasure(tx, self.fence, new))

    def save(
        self, checkpoint: progress.Checkpoint, elapsed_s: float, breakdown: Mapping[str, Any]
    ) -> None:
        """Replace the checkpoint.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: progress.save(tx, self.fence, checkpoint, elapsed_s, breakdown))

    def load(self) -> tuple[Sequence[str], progress.Checkpoint | None]:
        """Records of all trials so far, and the last checkpoint."""
        return self.read(
            lambda tx: (trials.records(tx, self.job.id), progress.checkpoint(tx, self.job.id))
        )

    def programs(self) -> list[str]:
        """The tensor programs as `felix.Task.to_json`, in order."""
        return self.read(lambda tx: jobs.programs(tx, self.job.id))

    def tasks(self) -> list[rows.Task]:
        """The job's tasks, in order, with what is known of them."""
        return self.read(lambda tx: jobs.tasks(tx, self.job.id))

    def model_file(self) -> bytes:
        """The file that the job was made from.

        Raises:
            NotFound: there is none, or it was removed.
            BlobError: it cannot be read.
        """
        files = self.read(lambda tx: artifacts.of_job(tx, self.job.id))
        source = next((file for file in files if file.kind == "input"), None)
        if source is None:
            raise errors.NotFound(f"job {self.job.id} has no file that it was made from")
        return b"".join(self._store.read(source.sha256))

    def known_schedules(self, task: int) -> list[str]:
        """Records that an earlier job has of a task's program, fastest first."""
        return self.read(lambda tx: reuse.known_schedules(tx, self.job.id, task))

    def known_imports(self, task: int) -> list[rows.ImportedSchedule]:
        """Schedules that an imported database has of a task's program, fastest first."""
        return self.read(lambda tx: reuse.known_imports(tx, self.job.id, task))

    def known_similar(self, task: int) -> list[reuse.SimilarTask]:
        """Tasks of the same operator with other extents, and their fastest schedules."""
        return self.read(lambda tx: reuse.known_similar(tx, self.job.id, task))

    def begin(self, target_key: str, resolved_target: str) -> None:
        """Say for which device exactly the job is tuned.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: leases.begin(tx, self.fence, target_key, resolved_target))

    def started(self, task_keys: Sequence[str], payload: Mapping[str, Any]) -> None:
        """Write that tuning begins or goes on.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: progress.started(tx, self.fence, task_keys, payload))

    def opened(
        self, task: int, n_sketches: int, extract_s: float, decisions: Mapping[str, Any]
    ) -> None:
        """Write that the sketches of a task are ready, and what their decisions are called.

        Raises:
            LeaseLost
        """
        self.write(
            lambda tx: progress.opened(tx, self.fence, task, n_sketches, extract_s, decisions)
        )

    def chosen(
        self, task: int, tuned_us: float | None, unscheduled_us: float, ships_unscheduled: bool
    ) -> None:
        """Write which of the best schedule and the unscheduled program of a task ships.

        Raises:
            LeaseLost
        """
        choice = (tuned_us, unscheduled_us, ships_unscheduled)
        self.write(lambda tx: progress.chosen(tx, self.fence, task, *choice))

    def baseline(self, task: int, latency_us: float | None, message: str) -> None:
        """Write the latency of the unscheduled program of a task.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: progress.baseline(tx, self.fence, task, latency_us, message))

    def round_started(
        self, task: int, number: int, counts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write that the candidates of a round were chosen.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: progress.round_started(tx, self.fence, task, number, counts, steps))

    def trained(self, values: Mapping[str, Any]) -> None:
        """Write that the cost model learnt.

        Raises:
            LeaseLost
        """
        self.write(lambda tx: progress.trained(tx, self.fence, values))

    def warn(self, message: str) -> None:
        """Write something a person should know.

        Raises:
            LeaseLost
        """
        payload = {"message": message}
        self.write(lambda tx: progress.append_event(tx, self.fence, events.Type.WARNING, payload))
