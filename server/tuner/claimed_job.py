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
from server.store import leases, progress, rows, trials
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
    """

    def __init__(
        self,
        db: database.Database,
        claim: leases.Claim,
        monitor: heartbeat.LeaseMonitor,
        leaving: threading.Event,
    ) -> None:
        self.job: rows.Job = claim.job
        self.fence = claim.fence
        self._db, self._monitor, self._leaving = db, monitor, leaving
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

    def should_stop(self) -> bool:
        """Whether the run has to end, for whatever reason."""
        return (
            self._leaving.is_set() or self._monitor.instruction is not states.Instruction.CONTINUE
        )

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
        self,
        checkpoint: progress.Checkpoint,
        elapsed_s: float,
        breakdown: Mapping[str, Any],
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
