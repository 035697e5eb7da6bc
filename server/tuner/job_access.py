"""What an engine may do to the job that it tunes: each verb is declared here, once.

`claimed_job.ClaimedJob` does the verbs in the database. `process.engine_main.RemoteJob` asks the
process that has it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from server.store import progress, reuse, rows, trials


class JobAccess(abc.ABC):
    """A claimed job as an engine sees it. Every verb that writes may raise `LeaseLost`."""

    #: what to tune
    job: rows.Job

    @abc.abstractmethod
    def do(self, verb: str, *arguments: Any) -> Any:
        """Do what the verb of this name says; the methods below call it with plain values."""

    @abc.abstractmethod
    def should_stop(self) -> bool:
        """Whether the run has to end; to be called many times a second."""

    @abc.abstractmethod
    def should_yield(self) -> bool:
        """Whether the run has to end after this round; to be called before each."""

    @abc.abstractmethod
    def begin_step(self, step: str) -> None:
        """Say what is done from now on, in words that follow "took longer than ..."."""

    # ------------------------------------------------------------ what is known

    def programs(self) -> list[str]:
        """The tensor programs as `felix.Task.to_json`, in order."""
        return list(self.do("programs"))

    def tasks(self) -> list[rows.Task]:
        """The job's tasks, in order, with what is known of them."""
        return list(self.do("tasks"))

    def n_groups(self) -> int:
        """Groups of the network that is built in the end; 0: none is."""
        return int(self.do("n_groups"))

    def model_file(self) -> bytes:
        """The file that the job was made from.

        Raises:
            NotFound: there is none, or it was removed.
            BlobError: it cannot be read.
        """
        content: bytes = self.do("model_file")
        return content

    def known_schedules(self, task: int) -> list[str]:
        """Records that an earlier job has of a task's program, fastest first."""
        return list(self.do("known_schedules", task))

    def known_imports(self, task: int) -> list[rows.ImportedSchedule]:
        """Schedules that an imported database has of a task's program, fastest first."""
        return list(self.do("known_imports", task))

    def known_similar(self, task: int) -> list[reuse.SimilarTask]:
        """Tasks of the same operator with other extents, and their fastest schedules."""
        return list(self.do("known_similar", task))

    def load(self) -> tuple[Sequence[str], progress.Checkpoint | None]:
        """Records of all trials so far, and the last checkpoint."""
        lines, checkpoint = self.do("load")
        return lines, checkpoint

    # ------------------------------------------------------------ what is new

    def begin(self, target_key: str, resolved_target: str) -> None:
        """Say for which device exactly the job is tuned."""
        self.do("begin", target_key, resolved_target)

    def add_trial(self, task: int, record: str) -> trials.Written:
        """Write a trial of a task, a line of `felix.database.records`.

        Raises:
            MeasureError: this machine fails to measure anything.
        """
        written: trials.Written = self.do("add_trial", task, record)
        return written

    def add_remeasurement(self, task: int, record: str) -> None:
        """Write a longer measurement of a candidate at the end of the run."""
        self.do("add_remeasurement", task, record)

    def save(
        self, checkpoint: progress.Checkpoint, elapsed_s: float, breakdown: Mapping[str, Any]
    ) -> None:
        """Replace the checkpoint."""
        self.do("save", checkpoint, elapsed_s, dict(breakdown))

    def started(self, task_keys: Sequence[str], payload: Mapping[str, Any]) -> None:
        """Tuning begins or goes on."""
        self.do("started", list(task_keys), dict(payload))

    def opened(
        self, task: int, n_sketches: int, extract_s: float, decisions: Mapping[str, Any]
    ) -> None:
        """The sketches of a task are ready; `decisions` says what those of each are called."""
        self.do("opened", task, n_sketches, extract_s, dict(decisions))

    def baseline(self, task: int, latency_us: float | None, message: str) -> None:
        """The unscheduled program of a task was timed."""
        self.do("baseline", task, latency_us, message)

    def round_started(
        self, task: int, number: int, counts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
    ) -> None:
        """Candidates of a round were chosen."""
        self.do("round_started", task, number, dict(counts), [dict(step) for step in steps])

    def chosen(
        self, task: int, tuned_us: float | None, unscheduled_us: float, ships_unscheduled: bool
    ) -> None:
        """Which of the best schedule and the unscheduled program of a task ships."""
        self.do("chosen", task, tuned_us, unscheduled_us, ships_unscheduled)

    def trained(self, values: Mapping[str, Any]) -> None:
        """The cost model learnt."""
        self.do("trained", dict(values))

    def warn(self, message: str) -> None:
        """Write something a person should know."""
        self.do("warn", message)
