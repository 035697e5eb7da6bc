"""What a run leaves in the store: its events, and its session as files would hold it."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix import events, tensorfile
from felix.database import records as felix_records
from felix.database import session
from server.store import progress
from server.tuner import job_access

if TYPE_CHECKING:
    from felix.task import Task


#: Names of tasks are cut after so many characters in messages.
MAX_NAME = 100


class EventRecorder:
    """Called with every event of a run, in the tuner's thread.

    Trials are written by `DatabaseSession`, before the search learns them.

    Args:
        claimed: the job.
        task_keys: of the job's tasks, in order.
        about: further fields of the event `started`: worker, device.
    """

    def __init__(
        self, claimed: job_access.JobAccess, task_keys: Sequence[str], about: Mapping[str, Any]
    ) -> None:
        self._claimed, self._task_keys, self._about = claimed, task_keys, about
        #: whether the run has begun: until then it must not be stopped
        self.has_begun = False

    def __call__(self, event: events.Event) -> None:
        """Write one event.

        Raises:
            LeaseLost
        """
        claimed = self._claimed
        match event:
            case events.Started():
                claimed.started(self._task_keys, {**plain(event), **self._about})
                self.has_begun = True
            case events.Opening(task=name):
                claimed.begin_step(f"building the formulas of task {name[:MAX_NAME]!r}")
            case events.Opened(task_index=number):
                labels = {str(index): groups for index, groups in event.decisions.items()}
                claimed.opened(number, event.n_sketches, event.extract_s, labels)
                claimed.begin_step("a step of tuning")
            case events.Baseline(task_index=number):
                claimed.baseline(number, event.latency_us, event.message)
            case events.Chosen(task_index=number):
                choice = (event.tuned_us, event.unscheduled_us, event.ships_unscheduled)
                claimed.chosen(number, *choice)
            case events.RoundStarted(task_index=number):
                values = plain(event)
                steps = values.pop("steps")
                for name in ("task", "task_index"):
                    values.pop(name)
                claimed.round_started(number, values.pop("round"), values, steps)
            case events.Trained():
                claimed.trained(plain(event))
            case events.Skipped(task=name, reason=reason):
                claimed.warn(f"task {name[:MAX_NAME]!r} is skipped: {reason}")
                claimed.begin_step("a step of tuning")
            case events.Warned(message=message):
                claimed.warn(message)
            case events.Remeasuring():
                claimed.begin_step("measuring the fastest candidates again")
            case events.Trial() | events.Finished():
                pass


def plain(event: events.Event) -> dict[str, Any]:
    """The event as values that JSON has: infinite and undefined numbers become None."""
    values = _finite(dataclasses.asdict(event))
    assert isinstance(values, dict)
    return values


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


_Trial = felix_records.Trial


class DatabaseSession:
    """The records and the checkpoint of one job.

    A record is a trial, written under the fence before the search learns it. A checkpoint names
    the versions it was made with: one of other versions is left aside, and the run goes on from
    the records alone.

    Args:
        claimed: the job.
        tasks: in the order of the job's tasks.
        identity: of this run; equal to that of the checkpoint, or the checkpoint is left aside.
    """

    def __init__(
        self, claimed: job_access.JobAccess, tasks: Sequence[Task], identity: session.Identity
    ) -> None:
        self._claimed = claimed
        self._numbers = {task.key: number for number, task in enumerate(tasks)}
        self._identity = dataclasses.asdict(identity) | {"task_keys": list(identity.task_keys)}
        lines, checkpoint = claimed.load()
        self.records: list[_Trial] = [_Trial.from_json(line) for line in lines]
        self.state: dict[str, Any] | None = None
        self.tensors: dict[str, Any] = {}
        if checkpoint is not None:
            if checkpoint.state["identity"] == self._identity:
                self.state = checkpoint.state["run"]
                self.tensors = _read(checkpoint.tensors)
            else:
                claimed.warn(
                    "the checkpoint is of other versions: going on from the records alone"
                )

    def append(self, trial: _Trial) -> None:
        """Write one trial; it is safe when this returns.

        Raises:
            LeaseLost
        """
        write = self._claimed.add_remeasurement if trial.repeat else self._claimed.add_trial
        write(self._numbers[trial.task_key], trial.to_json())
        self.records.append(trial)

    def save(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        Raises:
            LeaseLost
        """
        content = {"identity": self._identity, "run": dict(state)}
        checkpoint = progress.Checkpoint(len(self.records), content, _write(tensors))
        self._claimed.save(checkpoint, float(state["elapsed_s"]), state["breakdown"])

    def close(self) -> None:
        """Nothing to close: the lease is the tuner's."""


def _write(tensors: Mapping[str, Any]) -> bytes | None:
    if not tensors:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.safetensors")
        tensorfile.write(path, tensors, {"felix": "job"})
        return path.read_bytes()


def _read(content: bytes | None) -> dict[str, Any]:
    if content is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.safetensors")
        path.write_bytes(content)
        return dict(tensorfile.read(path)[0])


if TYPE_CHECKING:

    def _conforms(implementation: DatabaseSession) -> session.Journal:
        return implementation
