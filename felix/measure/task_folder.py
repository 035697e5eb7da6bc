"""A task on disk: written once by the worker that computes its reference, read by its successors.

`task.json` has the program and how its inputs are made, `output-N.bin` what argument N has to be
after a run. A folder without `task.json` is not complete.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import tvm

from felix import files
from felix.measure import expected, reference, task_program
from felix.measure import payload as payloads


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as it was written; `expected` is None if outputs are not checked."""

    mod: tvm.IRModule
    target: tvm.target.Target
    args: tuple[reference.Argument, ...]
    seed: int
    expected: expected.Expected | None

    def inputs(self) -> list[reference.Array]:
        """Contents of every argument before a run."""
        positive = self.expected is not None and self.expected.positive
        return reference.inputs(self.args, self.seed, positive=positive)


def write(folder: str, payload: str, seed: int, checked: expected.Expected | None) -> None:
    """Store a task: `payload` is one of TVM's, `checked` what its outputs are compared with."""
    pathlib.Path(folder).mkdir(exist_ok=True)
    meta: dict[str, Any] = {"payload": payload, "seed": seed, "reference": None}
    if checked is not None:
        for index, output in checked.outputs.items():
            output.tofile(_output_path(folder, index))
        rms = {str(index): value for index, value in checked.rms.items()}
        meta["reference"] = {"positive": checked.positive, "rms": rms}
    path = pathlib.Path(folder, "task.json")
    files.write_atomically(path, json.dumps(meta), durable=False)


def read(folder: str) -> StoredTask:
    """The task of a folder."""
    meta = json.loads(pathlib.Path(folder, "task.json").read_text())
    program = payloads.read_tir(meta["payload"])
    args = task_program.arguments(program.mod)
    checked = None
    if meta["reference"] is not None:
        rms = {int(index): value for index, value in meta["reference"]["rms"].items()}
        outputs = {index: _output(folder, index, args[index]) for index in rms}
        checked = expected.Expected(outputs, meta["reference"]["positive"], rms)
    return StoredTask(program.mod, program.target, args, meta["seed"], checked)


def _output(folder: str, index: int, arg: reference.Argument) -> reference.Array:
    dtype = reference.np_dtype(arg.dtype)
    return np.fromfile(_output_path(folder, index), dtype=dtype).reshape(arg.shape)


def _output_path(folder: str, index: int) -> str:
    return str(pathlib.Path(folder, f"output-{index}.bin"))
