"""How the seconds of a job are shared out: tuning, the artifacts of its tasks, its network.

They begin with the run; earlier turns of the job count. What follows tuning is estimated by the
number of tasks and groups; tuning has at least half.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from felix.network import deadline as deadlines
from felix.task import Task
from server.tuner import job_access

#: Seconds of writing a task's artifact, and the share of a job's that is kept for all of them: a
#: job that has less cannot tune them all.
_WRITTEN_S = {"llvm": 0.6, "cuda": 1.5}
_WRITTEN_SHARE = 0.2
#: Seconds of reading a network again, by its groups, and of what its file's bytes take.
_READ_S, _BYTE_S = 0.05, 2e-8
#: So late a job may end: seconds, and a share of its own.
_LATE_S, _LATE_SHARE = 5.0, 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The seconds of a job.

    Attributes:
        deadline: when they end.
        kind: of the job's target.
        n_tasks: that are tuned.
        n_groups: of the network that is built; 0: none is.
        n_bytes: of its file.
    """

    deadline: deadlines.Deadline
    kind: str
    n_tasks: int
    n_groups: int = 0
    n_bytes: int = 0

    @property
    def tuning_s(self) -> float | None:
        """Seconds of tuning, those of earlier turns among them; None: no limit."""
        seconds = self.deadline.seconds
        if seconds is None:
            return None
        written_s = min(self.n_tasks * _WRITTEN_S[self.kind], _WRITTEN_SHARE * seconds)
        return seconds - min(written_s + self._network_s, 0.5 * seconds)

    def can_write(self) -> bool:
        """Whether there is time to write a task's artifact, and to build the network then."""
        return self.deadline.left_s >= _WRITTEN_S[self.kind] + self._network_s

    def can_build(self) -> bool:
        """Whether a network that was read is built before the job is late."""
        late_s = max(_LATE_S, _LATE_SHARE * (self.deadline.seconds or 0.0))
        return self.deadline.left_s + late_s >= self._building_s

    @property
    def _network_s(self) -> float:
        if not self.n_groups:
            return 0.0
        return self.n_groups * _READ_S + self.n_bytes * _BYTE_S + self._building_s

    @property
    def _building_s(self) -> float:
        return self.deadline.ending_s(self.n_groups, self.kind)


def of(claimed: job_access.JobAccess, tasks: Sequence[Task], begun_s: float) -> Budget:
    """That of a claimed job whose run began then, by `time.monotonic`."""
    job = claimed.job
    return Budget(
        deadline=deadlines.Deadline(begun_s - job.elapsed_s, job.seconds),
        kind=tasks[0].target.kind.name,
        n_tasks=len(tasks),
        n_groups=claimed.n_groups(),
        n_bytes=job.workload.get("size_bytes", 0),
    )
