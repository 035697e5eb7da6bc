"""What the best schedule of a task is compared with, and how long that takes."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix.cli.comparison import process

if TYPE_CHECKING:
    from felix.task import Task

#: Library -> what people call it. "torch" is PyTorch eager, "inductor" its `torch.compile`.
NAMES: Mapping[str, str] = {"numpy": "numpy", "torch": "PyTorch", "inductor": "inductor"}
#: Those that are timed unless others are chosen.
DEFAULT = ("numpy", "torch")
#: Seconds a library may take in all; compiling with autotuning takes minutes.
TIMEOUT_S: Mapping[str, float] = {"numpy": 60.0, "torch": 60.0, "inductor": 600.0}


def measure(
    task: Task, workload: str | None, libraries: Sequence[str]
) -> dict[str, process.LibraryTime]:
    """Time libraries on a task of this machine, one after the other.

    Args:
        task: the task.
        workload: the task as `workloads.parse` takes it, if it is an operator of the catalogue.
        libraries: of `NAMES`; numpy is left out of tasks for a GPU.
    """
    return {
        library: _numpy(task) if library == "numpy" else _torch(task, workload, library)
        for library in libraries
        if library != "numpy" or task.target.kind.name == "llvm"
    }


def _numpy(task: Task) -> process.LibraryTime:
    from felix.tir import to_numpy

    source = to_numpy.source(task.mod)
    if source is None:
        return process.LibraryTime(None, "the program has no plain numpy form")
    if "ml_dtypes." in source:
        return process.LibraryTime(None, "numpy has no arithmetic of its own in these types")
    request = {"source": source, "arguments": _arguments(task)}
    return process.timed("numpy_child", request, _threads(task), TIMEOUT_S["numpy"])


def _torch(task: Task, workload: str | None, library: str) -> process.LibraryTime:
    from felix.workloads import catalogue

    if workload is None:
        return process.LibraryTime(None, "only operators of the catalogue have a PyTorch form")
    if importlib.util.find_spec("torch") is None:
        return process.LibraryTime(None, "PyTorch is not installed")
    operator, params = catalogue.parse_params(workload)
    kind = task.target.kind.name
    request = {
        "operator": operator,
        "params": params,
        "arguments": _arguments(task),
        "device": "cpu" if kind == "llvm" else kind,
        "compiled": library == "inductor",
        "allow_tf32": task.allows_tf32,
    }
    return process.timed("torch_child", request, _threads(task), TIMEOUT_S[library])


def _arguments(task: Task) -> list[dict[str, Any]]:
    from felix.measure import task_program

    return [dataclasses.asdict(argument) for argument in task_program.arguments(task.mod)]


def _threads(task: Task) -> int | None:
    """As many as the target has cores; None on a GPU."""
    return int(task.target.attrs["num-cores"]) if task.target.kind.name == "llvm" else None
