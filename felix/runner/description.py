"""A task as run workers get it: data about its arguments and its check, and no program.

A builder derives it from the task's program (`build.handle_reference`). Beside it comes a file
with the task's reference, whose suffix says what it holds:

- ".cubin": launch plan and cubin of the reference (`write_program`), for GPUs;
- ".so", ".ll": its library, or LLVM IR, for CPUs;
- ".outputs" (`protocol.OUTPUTS`): the expected outputs, where the builder has computed them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any, Literal

from felix import files
from felix.launch_plan import LaunchPlan
from felix.runner.checking import reference

#: Version of the description and of the files beside it.
VERSION = 1
#: Of a description as text: some hundred bytes an argument.
MAX_BYTES = 256 << 10
_DTYPE = re.compile(r"bool|u?int\d+|b?float\d+\w*")
_ARCH = re.compile(r"sm_\d+[a-z]?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What measuring candidates of a task takes, beside its reference.

    Attributes:
        device: what they run on, "cpu" or "cuda".
        target: of a GPU its architecture, like "sm_90"; of a CPU its target as JSON, for which the
            probe of `cpu.contention` is built.
        arguments: tensor parameters, in order.
        tolerance: relative tolerance of `reference`.
        seed: of the inputs.
    """

    device: Literal["cpu", "cuda"]
    target: str
    arguments: tuple[reference.Argument, ...]
    tolerance: float
    seed: int

    def to_json(self) -> str:
        """One line.

        Raises:
            ValueError: it is too long.
        """
        return checked(json.dumps({"version": VERSION} | dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> Description:
        """The description that `to_json` wrote.

        Raises:
            ValueError: it is none, too long, or of another version.
        """
        try:
            fields = json.loads(checked(text))
            version = fields.pop("version")
            if version == VERSION:
                arguments = tuple(map(_argument, fields.pop("arguments")))
                return _sound(cls(arguments=arguments, **fields))
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("what came is no description of a task") from None
        raise ValueError(f"a description of version {version!r}, not {VERSION}")


def checked(text: str) -> str:
    """A description's text; ValueError if it is too long."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"a description of {len(text) >> 10} KiB is longer than any task's")
    return text


def _argument(fields: dict[str, Any]) -> reference.Argument:
    argument = reference.Argument(**{**fields, "shape": tuple(fields["shape"])})
    if not _DTYPE.fullmatch(argument.dtype):
        raise TypeError
    reference.np_dtype(argument.dtype)  # or a TypeError
    is_shape = all(type(extent) is int and extent >= 0 for extent in argument.shape)
    bound = argument.index_bound
    if not is_shape or not (bound is None or type(bound) is int):
        raise TypeError
    return argument


def _sound(task: Description) -> Description:
    """The description; TypeError where a field is of another type or out of range."""
    is_sound = (
        task.device in ("cpu", "cuda")
        and isinstance(task.target, str)
        and (task.device == "cpu" or _ARCH.fullmatch(task.target))
        and (isinstance(task.tolerance, int | float) and 0 <= task.tolerance < math.inf)
        and (type(task.seed) is int and task.seed >= 0)
    )
    if not is_sound:
        raise TypeError
    return task


# A task on disk: written once by the worker that computes its outputs, read by its successors.
#
# `task.json` is its description, `expected.outputs` what its outputs have to be after a run. A
# folder without `task.json` is not complete.

_TASK, _EXPECTED = "task.json", "expected.outputs"


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as it was written, and where."""

    folder: str
    description: Description
    expected: reference.Expected

    @property
    def args(self) -> tuple[reference.Argument, ...]:
        """Its tensor parameters."""
        return self.description.arguments

    def inputs(self) -> list[reference.Array]:
        """Contents of every argument before a run."""
        seed, positive = self.description.seed, self.expected.positive
        return reference.inputs(self.args, seed, positive=positive)

    def mismatch(self, output: Callable[[int], reference.Array]) -> str | None:
        """What of the outputs, by argument index, is not as expected, in words; None if all is."""
        for index, wanted in self.expected.outputs.items():
            relative, size = self.description.tolerance, self.expected.rms[index]
            wrong = reference.mismatch(output(index), wanted, relative, size)
            if wrong is not None:
                return f"output {self.args[index].name}: {wrong}"
        return None


def write_task(folder: str, task: Description, checked: reference.Expected) -> None:
    """Store a task; `checked` is what its outputs are compared with."""
    path = pathlib.Path(folder)
    path.mkdir(exist_ok=True)
    reference.write_expected(str(path / _EXPECTED), checked)
    files.write_atomically(path / _TASK, task.to_json(), durable=False)


def read_task(folder: str) -> StoredTask:
    """The task of a folder."""
    path = pathlib.Path(folder)
    task = Description.from_json((path / _TASK).read_text())
    expected = reference.read_expected(str(path / _EXPECTED), task.arguments)
    return StoredTask(folder, task, expected)


# A program for a GPU as one file: its launch plan as a line of JSON, then its cubin.


def write_program(path: str, plan: LaunchPlan, cubin: bytes) -> None:
    """Plan and cubin in one file, which `read_program` reads."""
    pathlib.Path(path).write_bytes(plan.to_json().encode() + b"\n" + cubin)


def read_program(path: str) -> tuple[LaunchPlan, bytes]:
    """Plan and cubin of a file that `write_program` made."""
    head, _, cubin = pathlib.Path(path).read_bytes().partition(b"\n")
    return LaunchPlan.from_json(head.decode()), cubin
