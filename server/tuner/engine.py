"""The interface between a tuner and an engine: `server.tuner.felix_engine`, and fakes in tests."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Protocol

from server.tuner import claimed_job


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The best schedule of a task: TVMScript, and generated source."""

    task: int
    schedule: str
    source: str


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

    def versions(self) -> dict[str, str]:
        """Software that latencies depend on."""
        ...

    def run(self, claimed: claimed_job.ClaimedJob) -> Outcome:
        """Tune until the budget is spent or `claimed.should_stop()`.

        Everything measured is written through `claimed` as it comes, and what an earlier tuner
        wrote is the start.

        Raises:
            LeaseLost: the job is another tuner's.
            Exception: this attempt failed; `server.tuner.retry` decides what that means.
        """
        ...

    def export(
        self, claimed: claimed_job.ClaimedJob, outcome: Outcome, path: pathlib.Path
    ) -> list[Code]:
        """Write the artifact, a zip file, to `path`."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...
