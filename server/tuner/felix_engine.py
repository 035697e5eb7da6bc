"""The real engine: `felix.tune` on a claimed job, journalled and reported to the store.

Made before the first claim, it has TVM, torch and the measuring processes warm, so the first
trial of a job comes seconds after its claim.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import felix
from felix import errors, records, target
from felix.task import Task
from felix.tuning import options, results
from server import devices
from server.store import jobs, leases
from server.tuner import artifact, engine, event_recorder, warm_pools
from server.tuner import claimed_job as desks
from server.tuner import session as tuner_session

if TYPE_CHECKING:
    from felix.tuning import session

#: Options of a job that go to `TuneOptions` as they are.
JOB_OPTIONS = ("round_size", "patience_rounds")


class Workbench:
    """An `engine.Engine` on this machine's devices."""

    def __init__(self) -> None:
        self._devices = devices.offered()
        self._pools = warm_pools.Pools()
        self._pools.warm([json.dumps(device["target"]) for device in self._devices])

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`."""
        return self._devices

    def versions(self) -> dict[str, str]:
        """See `engine.Engine`."""
        return records.versions()

    def run(self, desk: desks.Desk) -> engine.Outcome:
        """See `engine.Engine`."""
        device, tasks = self._tasks(desk)
        about = {"worker": desk.job.worker_id, "device": device["name"]}
        report = event_recorder.Reporter(desk, [task.key for task in tasks], about)

        def open_journal(
            given: Sequence[Task], identity: session.Identity
        ) -> tuner_session.Journal:
            return tuner_session.Journal(desk, given, identity, report.warn)

        job = desk.job
        chosen = {name: job.options[name] for name in JOB_OPTIONS if name in job.options}
        found = felix.tune(
            tasks,
            trials=job.trials,
            seconds=job.seconds,
            seed=job.seed,
            strategy=job.strategy,
            options=options.TuneOptions(
                pool=self._pools.take,
                journal=open_journal,
                should_stop=lambda: report.has_begun and desk.should_stop(),
                **chosen,
            ),
            on_event=report,
        )
        working = [result for result in found.results if result.best_or_none is not None]
        failure = None if working else found.results[0].failure()
        return engine.Outcome(reason=found.reason, failure=failure, result=found)

    def export(
        self, desk: desks.Desk, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[engine.Code]:
        """See `engine.Engine`."""
        found: results.NetworkResult = outcome.result
        return artifact.write(found, desk.job, path)

    def close(self) -> None:
        """End all processes."""
        self._pools.close()

    def _tasks(self, desk: desks.Desk) -> tuple[dict[str, Any], list[Task]]:
        """The device of a job, and its tasks for that device; the first tuner chooses it."""
        job = desk.job
        device = next((d for d in self._devices if job.target_key in d["target_keys"]), None)
        if device is None:
            raise errors.MeasureError(f"this machine has no {job.target_key}")
        if job.resolved_target is None:
            resolved = target.describe(target.parse(job.target))
            exact = device["target_keys"][-1]
            desk.write(lambda tx: leases.begin(tx, desk.fence, exact, resolved))
        else:
            resolved = job.resolved_target
        programs = desk.read(lambda tx: jobs.programs(tx, job.id))
        # The parser's child has read, checked and rehearsed them at submission.
        return device, [Task.from_json(text, resolved, trusted=True) for text in programs]


if TYPE_CHECKING:

    def _conforms(workbench: Workbench) -> engine.Engine:
        return workbench
