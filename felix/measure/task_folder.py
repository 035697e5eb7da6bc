"""A task on disk: written once by the worker that computes its outputs, read by its successors.

`task.json` is its description, `expected.outputs` what its outputs have to be after a run, if they
are checked. A folder without `task.json` is not complete.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

from felix import files
from felix.measure.checking import expected, reference
from felix.measure.description import Description

_TASK, _EXPECTED = "task.json", "expected.outputs"


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as it was written; `expected` is None if outputs are not checked."""

    description: Description
    expected: expected.Expected | None

    @property
    def args(self) -> tuple[reference.Argument, ...]:
        """Its tensor parameters."""
        return self.description.arguments

    def inputs(self) -> list[reference.Array]:
        """Contents of every argument before a run."""
        positive = self.expected is not None and self.expected.positive
        return reference.inputs(self.args, self.description.seed, positive=positive)

    def mismatch(self, output: Callable[[int], reference.Array]) -> str | None:
        """What of the outputs, by argument index, is not as expected, in words; None if all is."""
        if self.expected is None:
            return None
        for index, wanted in self.expected.outputs.items():
            relative, size = self.description.tolerance, self.expected.rms[index]
            wrong = reference.mismatch(output(index), wanted, relative, size)
            if wrong is not None:
                return f"output {self.args[index].name}: {wrong}"
        return None


def write(folder: str, task: Description, checked: expected.Expected | None) -> None:
    """Store a task; `checked` is what its outputs are compared with."""
    path = pathlib.Path(folder)
    path.mkdir(exist_ok=True)
    if checked is not None:
        expected.write(str(path / _EXPECTED), checked)
    files.write_atomically(path / _TASK, task.to_json(), durable=False)


def read(folder: str) -> StoredTask:
    """The task of a folder."""
    path = pathlib.Path(folder)
    task = Description.from_json((path / _TASK).read_text())
    outputs = path / _EXPECTED
    checked = expected.read(str(outputs), task.arguments) if outputs.exists() else None
    return StoredTask(task, checked)
