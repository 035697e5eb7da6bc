"""The interface between a tuner and an engine: `server.tuner.felix_engine`, and fakes in tests."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Protocol, TypeVar

from felix.measure import readings
from server.store import artifacts, networks, tuners
from server.tuner import claimed_job, job_access

#: What an engine gets of a job.
J = TypeVar("J", bound=job_access.JobAccess, contravariant=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended. `reason` is the engine's, `interrupted` if `should_stop` ended it."""

    reason: str
    #: why there is nothing to make an artifact of; None if there is
    failure: str | None
    #: handed back to `Engine.export`
    result: Any


class JobEngine(Protocol[J]):
    """Runs jobs, one at a time."""

    def devices(self) -> list[dict[str, Any]]:
        """What jobs can be measured on here (`server.parsing.devices.of_this_machine`)."""
        ...

    def versions(self) -> dict[str, str]:
        """Software that latencies depend on."""
        ...

    def run(self, claimed: J) -> Outcome:
        """Tune until the budget is spent or `claimed.should_stop()`.

        Everything measured is written through `claimed` as it comes, and what an earlier tuner
        wrote is the start.

        Raises:
            LeaseLost: the job is another tuner's.
            Exception: this attempt failed; `server.tuner.tuner` decides what that means.
        """
        ...

    def export(self, claimed: J, outcome: Outcome, path: pathlib.Path) -> list[artifacts.Code]:
        """Write the artifact, a zip file, to `path`.

        Raises:
            LeaseLost
            Cancelled: the job is to be cancelled, so nobody needs it.
            Exception: as `run`.
        """
        ...

    def build_network(self, claimed: J, outcome: Outcome, path: pathlib.Path) -> networks.Built:
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


class Engine(JobEngine[claimed_job.ClaimedJob], Protocol):
    """What a tuner has."""

    def reports(self) -> list[tuners.Seen]:
        """How its devices are now; called by another thread."""
        ...

    def make_ready(self) -> bool:
        """Begin what is missing for a job; whether one may come now."""
        ...


class RemoteEngine(JobEngine[job_access.JobAccess], Protocol):
    """What the process of an engine has: it reaches the job by its tuner."""

    def conditions(self) -> list[readings.Condition]:
        """How each device is; called while nothing or a job runs."""
        ...
