"""The real engine: `felix.tune` on a claimed job, with records and events in the store.

Made before the first claim, it has TVM, torch and the measuring processes warm, so the first
trial of a job comes seconds after its claim.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import felix
from felix import errors, target
from felix.database import outcome, records
from felix.measure import readings
from felix.metaschedule import trace_text
from felix.processes import policy
from felix.task import Task
from felix.tuning import options, results
from server.parsing import devices
from server.store import artifacts as store_artifacts
from server.store import networks, reuse
from server.tuner import artifacts, engine, job_access, places, run_records
from server.tuner import budget as budgets

if TYPE_CHECKING:
    from felix.space.sketch import Sketch
    from felix.space.trace_sketch import TraceSketch


#: Options of a job that go to `TuneOptions` as they are.
JOB_OPTIONS = ("round_size", "patience_rounds")


class FelixEngine(engine.RemoteEngine):
    """An engine on this machine's devices, or on those of a cluster.

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

    def conditions(self) -> list[readings.Condition]:
        """See `engine.RemoteEngine`."""
        return self._places.conditions()

    def versions(self) -> dict[str, str]:
        """See `engine.Engine`."""
        return records.versions()

    def run(self, claimed: job_access.JobAccess) -> engine.Outcome:
        """See `engine.Engine`."""
        begun_s = time.monotonic()
        claimed.begin_step("beginning the run")
        device, tasks = self._tasks(claimed)
        budget = budgets.of(claimed, tasks, begun_s)
        about = {
            "worker": claimed.job.worker_id,
            "device": device["name"],
            "versions": self.versions(),
        }
        record_event = run_records.EventRecorder(claimed, [task.key for task in tasks], about)
        job = claimed.job
        earlier = EarlierJobs(claimed, tasks)
        job_options = {name: job.options[name] for name in JOB_OPTIONS if name in job.options}
        result = felix.tune(
            tasks,
            trials=job.trials,
            seconds=budget.tuning_s,
            seed=job.seed,
            strategy=job.strategy,
            options=options.TuneOptions(
                pool=self._places.pool,
                journal=functools.partial(run_records.DatabaseSession, claimed),
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
        return engine.Outcome(reason=result.reason, failure=failure, result=(result, budget))

    def export(
        self, claimed: job_access.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[store_artifacts.Code]:
        """See `engine.Engine`."""
        result, budget = _ended(outcome)
        return artifacts.write(result, claimed, path, budget)

    def build_network(
        self, claimed: job_access.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> networks.Built:
        """See `engine.Engine`."""
        result, budget = _ended(outcome)
        return artifacts.write_network(
            result, claimed, path, budget, runs_here=self._places.are_here
        )

    def close(self) -> None:
        """End all processes."""
        self._places.close()

    def _tasks(self, claimed: job_access.JobAccess) -> tuple[dict[str, Any], list[Task]]:
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


def _ended(outcome: engine.Outcome) -> tuple[results.NetworkResult, budgets.Budget]:
    """What a run gave, and the seconds of its job."""
    ended: tuple[results.NetworkResult, budgets.Budget] = outcome.result
    return ended


#: Schedules of an earlier job that are measured first.
MOST_FIRST = 8


class EarlierJobs:
    """What earlier jobs know of the tasks of a claimed one.

    Args:
        claimed: the job.
        tasks: of it, in order.
    """

    def __init__(self, claimed: job_access.JobAccess, tasks: Sequence[Task]) -> None:
        self._claimed = claimed
        rows = claimed.tasks()
        self._numbers = {task.key: number for number, task in enumerate(tasks)}
        self._is_measured = [row.n_trials > 0 for row in rows]
        #: keys of tasks that get no trials
        self.settled = frozenset(
            task.key for task, row in zip(tasks, rows, strict=True) if row.settled
        )

    def first_schedules(
        self, task: Task, sketches: Sequence[Sketch]
    ) -> list[tuple[str, Sequence[int]]]:
        """The fastest schedules that an earlier job or an imported database has of a task.

        Where there are none, those of its operator with other extents, adapted.
        """
        number = self._numbers[task.key]
        if self._is_measured[number]:
            return []  # its trials are the job's own already
        lines = self._claimed.known_schedules(number)
        imported = self._claimed.known_imports(number)
        schedules = [schedule for line in lines if (schedule := _recorded(line)) is not None]
        if imported:
            traces = _traces(sketches)  # a database of TVM knows no templates
            finder = trace_text.Finder(traces)
            for each in imported:
                located = finder.find(each.signature, each.decisions)
                if located is not None:
                    schedules.append((traces[located[0]].key, located[1]))
        known = {sketch.key for sketch in sketches}
        usable = [schedule for schedule in schedules if schedule[0] in known]
        if not usable:
            similar = map(_outcome, self._claimed.known_similar(number))
            usable = outcome.first_schedules(filter(None, similar), sketches)
        return usable[:MOST_FIRST]


def _traces(sketches: Sequence[Sketch]) -> list[TraceSketch]:
    from felix.space.template_sketch import TemplateSketch

    return [sketch for sketch in sketches if not isinstance(sketch, TemplateSketch)]


def _outcome(similar: reuse.SimilarTask) -> outcome.KnownResult | None:
    """What another task's record says, with what its decisions are; None if nobody knows them."""
    try:
        record = records.Trial.from_json(similar.record)
        task = Task.from_json(similar.program, similar.resolved_target, trusted=True)
        sketch = _sketch(task, record.sketch_key)
    except errors.FelixError:
        return None
    if sketch is None or len(sketch.variables) != len(record.decisions):
        return None
    schedule = outcome.Schedule(
        sketch_key=record.sketch_key,
        sketch_index=record.sketch_index,
        variant=str(sketch.variant),
        decisions=outcome.decided(sketch.variables, record.decisions),
    )
    return outcome.KnownResult(tuned_us=record.latency_us, schedule=schedule)


def _sketch(task: Task, key: str) -> Sketch | None:
    """A task's sketch; those of traces are made, which takes long, where no template has the key.

    Raises:
        UnsupportedSchedule: no sketch can be modelled.
    """
    from felix.space import sketch as sketching

    for every in (sketching.of_templates, sketching.trace_sketches):
        found = next((sketch for sketch in every(task) if sketch.key == key), None)
        if found is not None:
            return found
    return None


def _recorded(line: str) -> tuple[str, Sequence[int]] | None:
    """Sketch key and decisions of a record; None if another version wrote it."""
    try:
        record = records.Trial.from_json(line)
    except errors.RecordError:
        return None
    return record.sketch_key, record.decisions
