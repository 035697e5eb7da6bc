"""The interface between a tuner and an engine: `server.tuner.felix_engine`, and fakes in tests."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from server.store import networks, progress, reuse, rows, trials, tuners
from server.tuner import claimed_job


class JobAccess(Protocol):
    """A claimed job as an engine sees it.

    `claimed_job.ClaimedJob` writes to the database; `process.remote_job.RemoteJob` asks the
    process that does. Every verb that writes may raise `LeaseLost`.
    """

    @property
    def job(self) -> rows.Job:
        """What to tune."""
        ...

    def should_stop(self) -> bool:
        """Whether the run has to end; to be called many times a second."""
        ...

    def should_yield(self) -> bool:
        """Whether the run has to end after this round; to be called before each."""
        ...

    def begin_step(self, step: str) -> None:
        """Say what is done from now on, in words that follow "took longer than ..."."""
        ...

    def programs(self) -> list[str]:
        """The tensor programs as `felix.Task.to_json`, in order."""
        ...

    def tasks(self) -> list[rows.Task]:
        """The job's tasks, in order, with what is known of them."""
        ...

    def model_file(self) -> bytes:
        """The file that the job was made from."""
        ...

    def known_schedules(self, task: int) -> list[str]:
        """Records that an earlier job has of a task's program, fastest first."""
        ...

    def known_imports(self, task: int) -> list[rows.ImportedSchedule]:
        """Schedules that an imported database has of a task's program, fastest first."""
        ...

    def known_similar(self, task: int) -> list[reuse.SimilarTask]:
        """Tasks of the same operator with other extents, and their fastest schedules."""
        ...

    def begin(self, target_key: str, resolved_target: str) -> None:
        """Say for which device exactly the job is tuned."""
        ...

    def load(self) -> tuple[Sequence[str], progress.Checkpoint | None]:
        """Records of all trials so far, and the last checkpoint."""
        ...

    def add_trial(self, new: trials.NewTrial) -> trials.Written:
        """Write a trial; MeasureError if this machine fails to measure anything."""
        ...

    def add_remeasurement(self, new: trials.NewTrial) -> None:
        """Write a longer measurement of a candidate at the end of the run."""
        ...

    def save(
        self, checkpoint: progress.Checkpoint, elapsed_s: float, breakdown: Mapping[str, Any]
    ) -> None:
        """Replace the checkpoint."""
        ...

    def started(self, task_keys: Sequence[str], payload: Mapping[str, Any]) -> None:
        """Tuning begins or goes on."""
        ...

    def opened(
        self, task: int, n_sketches: int, extract_s: float, decisions: Mapping[str, Any]
    ) -> None:
        """The sketches of a task are ready; `decisions` says what those of each are called."""
        ...

    def baseline(self, task: int, latency_us: float | None, message: str) -> None:
        """The unscheduled program of a task was timed."""
        ...

    def round_started(
        self, task: int, number: int, counts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
    ) -> None:
        """Candidates of a round were chosen."""
        ...

    def chosen(
        self, task: int, tuned_us: float | None, unscheduled_us: float, ships_unscheduled: bool
    ) -> None:
        """Which of the best schedule and the unscheduled program of a task ships."""
        ...

    def trained(self, values: Mapping[str, Any]) -> None:
        """The cost model learnt."""
        ...

    def warn(self, message: str) -> None:
        """Write something a person should know."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The best schedule of a task: TVMScript, generated source, assembly (of a GPU PTX)."""

    task: int
    schedule: str
    source: str
    assembly: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `reason` is the engine's, `interrupted` if `should_stop` ended it."""

    reason: str
    #: why there is nothing to make an artifact of; None if there is
    failure: str | None
    #: handed back to `Engine.export`
    result: Any


class Engine(Protocol):
    """Runs jobs, one at a time."""

    def devices(self) -> list[dict[str, Any]]:
        """What jobs can be measured on here (`server.parsing.devices.of_this_machine`)."""
        ...

    def reports(self) -> list[tuners.Seen]:
        """How these devices are now; called by another thread."""
        ...

    def versions(self) -> dict[str, str]:
        """Software that latencies depend on."""
        ...

    def is_ready(self) -> bool:
        """Whether a job may come now; begins what is missing if not."""
        ...

    def run(self, claimed: claimed_job.ClaimedJob) -> Outcome:
        """Tune until the budget is spent or `claimed.should_stop()`.

        Everything measured is written through `claimed` as it comes, and what an earlier tuner
        wrote is the start.

        Raises:
            LeaseLost: the job is another tuner's.
            Exception: this attempt failed; `server.tuner.tuner` decides what that means.
        """
        ...

    def export(
        self, claimed: claimed_job.ClaimedJob, outcome: Outcome, path: pathlib.Path
    ) -> list[Code]:
        """Write the artifact, a zip file, to `path`.

        Raises:
            LeaseLost
            Cancelled: the job is to be cancelled, so nobody needs it.
            Exception: as `run`.
        """
        ...

    def build_network(
        self, claimed: claimed_job.ClaimedJob, outcome: Outcome, path: pathlib.Path
    ) -> networks.Built:
        """Build the job's network, check it, and write its artifact, a zip file, to `path`.

        Raises:
            LeaseLost
            Cancelled
            Exception: the network cannot be built; the message says why.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...
