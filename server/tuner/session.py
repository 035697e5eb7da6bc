"""The session of a run in the database: what `felix.tuning.session` does with files.

A record is a trial, written under the fence before the search learns it. A checkpoint names the
versions it was made with: one of other versions is left aside, and the run goes on from the
records alone.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix import records as felix_records
from felix import tensorfile
from felix.tuning import session
from server.store import progress, trials
from server.tuner import engine

if TYPE_CHECKING:
    from felix.task import Task

_Record = felix_records.Record


class DatabaseSession:
    """The records and the checkpoint of one job.

    Args:
        claimed: the job.
        tasks: in the order of the job's tasks.
        identity: of this run; equal to that of the checkpoint, or the checkpoint is left aside.
        warn: called with a message if it is.
    """

    def __init__(
        self,
        claimed: engine.JobAccess,
        tasks: Sequence[Task],
        identity: session.Identity,
        warn: Callable[[str], None],
    ) -> None:
        self._claimed = claimed
        self._numbers = {task.key: number for number, task in enumerate(tasks)}
        self._identity = dataclasses.asdict(identity) | {"task_keys": list(identity.task_keys)}
        lines, checkpoint = claimed.load()
        self.records: list[_Record] = [_Record.from_json(line) for line in lines]
        self.state: dict[str, Any] | None = None
        self.tensors: dict[str, Any] = {}
        if checkpoint is not None:
            if checkpoint.state["identity"] == self._identity:
                self.state = checkpoint.state["run"]
                self.tensors = _read(checkpoint.tensors)
            else:
                warn("the checkpoint is of other versions: going on from the records alone")

    def append(self, record: _Record) -> None:
        """Write one record; it is safe when this returns.

        Raises:
            LeaseLost
        """
        new = self._trial(record)
        if record.repeat:
            self._claimed.add_remeasurement(new)
        else:
            self._claimed.add_trial(new)
        self.records.append(record)

    def save(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        Raises:
            LeaseLost
        """
        content = {"identity": self._identity, "run": dict(state)}
        checkpoint = progress.Checkpoint(len(self.records), content, _write(tensors))
        self._claimed.save(checkpoint, float(state["elapsed_s"]), state["breakdown"])

    def _trial(self, record: _Record) -> trials.NewTrial:
        measurement = record.measurement
        return trials.NewTrial(
            task=self._numbers[record.task_key],
            round=record.round,
            sketch_index=record.sketch_index,
            sketch_key=record.sketch_key,
            decisions=record.decisions,
            latency_us=measurement.latency_us,
            error=None if measurement.error is None else str(measurement.error),
            message=measurement.message,
            checked=measurement.checked,
            spread=measurement.spread,
            predicted_us=record.predicted_us,
            elapsed_s=record.elapsed_s,
            build_s=measurement.build_s,
            run_s=measurement.run_s,
            device=measurement.device,
            record=record.to_json(),
        )

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
