"""The real engine: `felix.tune` on a claimed job, with records and events in the store.

Made before the first claim, it has TVM, torch and the measuring processes warm, so the first
trial of a job comes seconds after its claim.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import felix
from felix import errors, records, target
from felix.measure import conditions
from felix.processes import policy
from felix.task import Task
from felix.tuning import options, results
from server.parsing import devices
from server.store import networks, tuners
from server.tuner import earlier_jobs, engine, event_recorder, places, reports
from server.tuner import session as tuner_session
from server.tuner.artifacts import job_artifact, network_artifact

if TYPE_CHECKING:
    from felix.tuning import session

#: Options of a job that go to `TuneOptions` as they are.
JOB_OPTIONS = ("round_size", "patience_rounds")


class FelixEngine:
    """An `engine.Engine` on this machine's devices, or on those of a cluster.

    Args:
        confine_gpu: whether run workers of a GPU are confined.
        cluster: a pipe to the link of a cluster; None: this machine measures.
    """

    def __init__(
        self,
        confine_gpu: policy.ConfineGpu = policy.ConfineGpu.AUTO,
        cluster: Connection | None = None,
    ) -> None:
        self._places: places.Places = (
            places.ThisMachine(confine_gpu) if cluster is None else places.OnCluster(cluster)
        )

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`."""
        return self._places.devices()

    def conditions(self) -> list[conditions.Condition]:
        """How each device is, for `reports`."""
        return self._places.conditions()

    def reports(self) -> list[tuners.Seen]:
        """See `engine.Engine`."""
        by_place = {each.place: each for each in self.conditions()}
        return reports.seen(self.devices(), by_place, self.versions())

    def versions(self) -> dict[str, str]:
        """See `engine.Engine`."""
        return records.versions()

    def is_ready(self) -> bool:
        """Always: made warm."""
        return True

    def run(self, claimed: engine.JobAccess) -> engine.Outcome:
        """See `engine.Engine`."""
        claimed.begin_step("beginning the run")
        device, tasks = self._tasks(claimed)
        about = {
            "worker": claimed.job.worker_id,
            "device": device["name"],
            "versions": self.versions(),
        }
        record_event = event_recorder.EventRecorder(claimed, [task.key for task in tasks], about)

        def open_session(
            run_tasks: Sequence[Task], identity: session.Identity
        ) -> tuner_session.DatabaseSession:
            return tuner_session.DatabaseSession(claimed, run_tasks, identity, claimed.warn)

        job = claimed.job
        earlier = earlier_jobs.EarlierJobs(claimed, tasks)
        job_options = {name: job.options[name] for name in JOB_OPTIONS if name in job.options}
        result = felix.tune(
            tasks,
            trials=job.trials,
            seconds=job.seconds,
            seed=job.seed,
            strategy=job.strategy,
            options=options.TuneOptions(
                pool=self._places.pool,
                journal=open_session,
                should_stop=lambda: (
                    record_event.has_begun
                    and (claimed.should_stop() or self._places.lost is not None)
                ),
                settled=earlier.settled,
                first_schedules=earlier.first_schedules,
                should_pause=claimed.should_yield,
                **job_options,
            ),
            on_event=record_event,
        )
        if result.reason == "interrupted" and (lost := self._places.lost) is not None:
            raise errors.NoDevice(lost)
        has_schedule = any(each.best_or_none is not None for each in result.results)
        failure = None if has_schedule else result.results[0].failure()
        return engine.Outcome(reason=result.reason, failure=failure, result=result)

    def export(
        self, claimed: engine.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[engine.Code]:
        """See `engine.Engine`."""
        result: results.NetworkResult = outcome.result
        return job_artifact.write(result, claimed.job, path, claimed.begin_step)

    def build_network(
        self, claimed: engine.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> networks.Built:
        """See `engine.Engine`."""
        return network_artifact.write(
            outcome.result, claimed, path, runs_here=self._places.are_here
        )

    def close(self) -> None:
        """End all processes."""
        self._places.close()

    def _tasks(self, claimed: engine.JobAccess) -> tuple[dict[str, Any], list[Task]]:
        """The device of a job, and its tasks for that device; the first tuner chooses it."""
        job = claimed.job
        device = self._places.device(job.target_key)
        if job.resolved_target is None:
            parsed = self._places.resolve(job.target, device)  # it was checked at submission
            devices.refuse_cores(parsed.attrs.get("num-cores", 1), [device])
            resolved = target.describe(parsed)
            claimed.begin(device["target_keys"][-1], resolved)
        else:
            resolved = job.resolved_target
        # The parser's child has read, checked and rehearsed them at submission.
        return device, [
            Task.from_json(text, resolved, trusted=True) for text in claimed.programs()
        ]


if TYPE_CHECKING:

    def _conforms(implementation: FelixEngine) -> engine.Engine:
        return implementation
