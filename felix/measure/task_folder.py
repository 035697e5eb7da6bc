"""A task on disk: written once by the worker that computes its reference, read by its successors.

`task.json` has the program and how its inputs are made, `output-N.bin` what argument N has to be
after a run. A folder without `task.json` is not complete.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping

import numpy as np
import tvm

from felix import files
from felix.measure import payload as payloads
from felix.measure import reference


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTask:
    """A task as it was written; `expected` is empty if outputs are not checked."""

    mod: tvm.IRModule
    target: tvm.target.Target
    args: tuple[reference.Argument, ...]
    seed: int
    positive: bool
    expected: dict[int, reference.Array]

    def inputs(self) -> list[reference.Array]:
        """Contents of every argument before a run."""
        return reference.inputs(self.args, self.seed, positive=self.positive)


def write(
    folder: str, payload: str, seed: int, positive: bool, outputs: Mapping[int, reference.Array]
) -> None:
    """Store a task: `payload` is one of TVM's, `outputs` are by argument index."""
    pathlib.Path(folder).mkdir(exist_ok=True)
    for index, output in outputs.items():
        output.tofile(_output_path(folder, index))
    meta = {"payload": payload, "seed": seed, "positive": positive, "check": bool(outputs)}
    path = pathlib.Path(folder, "task.json")
    files.write_atomically(path, json.dumps(meta), durable=False)


def read(folder: str) -> StoredTask:
    """The task of a folder."""
    meta = json.loads(pathlib.Path(folder, "task.json").read_text())
    program = payloads.read_tir(meta["payload"])
    args = reference.arguments(program.mod)
    expected = {
        index: np.fromfile(
            _output_path(folder, index), dtype=reference.np_dtype(arg.dtype)
        ).reshape(arg.shape)
        for index, arg in enumerate(args)
        if arg.is_output and meta["check"]
    }
    return StoredTask(program.mod, program.target, args, meta["seed"], meta["positive"], expected)


def _output_path(folder: str, index: int) -> str:
    return str(pathlib.Path(folder, f"output-{index}.bin"))
