"""A job that this tuner has claimed: fenced writes and the instruction of the moment.

`ClaimedJob.write` runs a verb of the store in a transaction of its own and tries again while the
database cannot be reached, until the lease must be lost. Records and checkpoints go to the
database, so that another tuner on another machine can go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from felix import errors as engine_errors
from felix.database import records
from felix.runner import protocol
from server import errors, logs, states
from server.database import database
from server.store import artifacts, blobs, jobs, leases, networks, progress, reuse, rows, trials
from server.tuner import heartbeat, job_access

_log = logs.of(__name__)
T = TypeVar("T")

#: Between two tries to reach the database.
RETRY_S = 0.5

#: Failures of infrastructure one after the other, after which the machine is at fault.
MAX_INFRASTRUCTURE = 24


#: Verbs of `job_access.JobAccess` that read, with what does them for a job's number;
READS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "programs": jobs.programs,
    "tasks": jobs.tasks,
    "n_groups": networks.n_groups,
    "known_schedules": reuse.known_schedules,
    "known_imports": reuse.known_imports,
    "known_similar": reuse.known_similar,
    "load": lambda tx, job_id: (trials.records(tx, job_id), progress.checkpoint(tx, job_id)),
})  # fmt: skip
#: those that write, under the job's fence;
WRITES: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "begin": leases.begin,
    "add_trial": lambda tx, fence, *trial: trials.append(tx, fence, trials.row(*trial)),
    "add_remeasurement": lambda tx, fence, *trial: trials.remeasure(tx, fence, trials.row(*trial)),
    "save": progress.save,
    "started": progress.started,
    "opened": progress.opened,
    "baseline": progress.baseline,
    "round_started": progress.round_started,
    "chosen": progress.chosen,
    "trained": progress.trained,
    "warn": progress.warn,
})  # fmt: skip
#: and all.
VERBS = frozenset({*READS, *WRITES, "model_file"})


class ClaimedJob(job_access.JobAccess):
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
        #: whether this claim gave a new trial
        self.has_progress = False

    @property
    def instruction(self) -> states.Instruction:
        """What the tuner has to do."""
        return self._monitor.instruction

    @property
    def attempts(self) -> int:
        """Claims in a row without progress, this one included."""
        return 1 if self.has_progress else self.job.attempts

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
        """Nobody watches an engine in this process."""

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
                _log.warning("cannot write to the database: %s", error, action="write_failed")
                if self._monitor.instruction is states.Instruction.LEASE_LOST:
                    raise errors.LeaseLost("the database was out of reach for too long") from error
                time.sleep(RETRY_S)

    def read(self, verb: Callable[[orm.Session], T]) -> T:
        """A transaction that only reads."""
        with self._db.read() as tx:
            return verb(tx)

    def do(self, verb: str, *arguments: Any) -> Any:
        """See `job_access.JobAccess`; a transaction of its own."""
        if verb == "model_file":
            return self._model_file()
        if verb in READS:
            return self.read(lambda tx: READS[verb](tx, self.job.id, *arguments))
        return self.write(lambda tx: WRITES[verb](tx, self.fence, *arguments))

    def add_trial(self, task: int, record: str) -> trials.Written:
        """Write a trial.

        Raises:
            LeaseLost
            MeasureError: this machine fails to measure anything.
        """
        measured = records.Trial.from_json(record).measured
        written = super().add_trial(task, record)
        is_infrastructure = measured.error is protocol.ErrorClass.INFRASTRUCTURE
        self._n_infrastructure = self._n_infrastructure + 1 if is_infrastructure else 0
        self.has_progress = self.has_progress or not is_infrastructure
        if self._n_infrastructure >= MAX_INFRASTRUCTURE:
            raise engine_errors.MeasureError(
                f"the last {self._n_infrastructure} measurements failed and none was the "
                f"candidate's fault: {measured.message}"
            )
        return written

    def _model_file(self) -> bytes:
        files = self.read(lambda tx: artifacts.of_job(tx, self.job.id))
        source = next((file for file in files if file.kind == "input"), None)
        if source is None:
            raise errors.NotFound(f"job {self.job.id} has no file that it was made from")
        return b"".join(self._store.read(source.sha256))
