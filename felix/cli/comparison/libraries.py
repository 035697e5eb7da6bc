"""What the best schedule of a task is compared with, and how long that takes.

A library has a process of its own (`processes.child.ask`). BLAS and OpenMP take the number of
threads from the environment when they are loaded.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix.processes import child

if TYPE_CHECKING:
    from felix.task import Task


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryTime:
    """Median latency and how it was measured, or None with the reason."""

    latency_us: float | None
    note: str


def timed(
    module: str, request: Mapping[str, Any], n_threads: int | None, timeout_s: float
) -> LibraryTime:
    """What a module of this package, run as a process, answers to a request."""
    variables = {} if n_threads is None else dict.fromkeys(child.ONE_THREAD, str(n_threads))
    environment = child.for_child(os.environ, variables)
    try:
        answer = child.ask(f"felix.cli.comparison.{module}", request, timeout_s, environment)
    except TimeoutError:
        return LibraryTime(None, f"it took over {timeout_s:.0f} s")
    except child.Unanswered as error:
        return LibraryTime(None, f"it failed: {error}")
    return LibraryTime(**answer)


def serve(answer: Callable[[Mapping[str, Any]], LibraryTime]) -> None:
    """In the process: answer the request."""
    question = child.Question(sys.argv[1])
    question.answer(dataclasses.asdict(answer(question.request)))


def threads(count: int) -> str:
    """A number of threads in words."""
    return f"{count} thread{'s' * (count != 1)}"


#: Library -> what people call it. "torch" is PyTorch eager, "inductor" its `torch.compile`.
NAMES: Mapping[str, str] = {"numpy": "numpy", "torch": "PyTorch", "inductor": "inductor"}
#: Those that are timed unless others are chosen.
DEFAULT = ("numpy", "torch")
#: Seconds a library may take in all; compiling with autotuning takes minutes.
TIMEOUT_S: Mapping[str, float] = {"numpy": 60.0, "torch": 60.0, "inductor": 600.0}


def measure(task: Task, workload: str | None, libraries: Sequence[str]) -> dict[str, LibraryTime]:
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


def _numpy(task: Task) -> LibraryTime:
    from felix.tir import to_numpy

    source = to_numpy.source(task.mod)
    if source is None:
        return LibraryTime(None, "the program has no plain numpy form")
    if "ml_dtypes." in source:
        return LibraryTime(None, "numpy has no arithmetic of its own in these types")
    request = {"source": source, "arguments": _arguments(task)}
    return timed("numpy_child", request, _threads(task), TIMEOUT_S["numpy"])


def _torch(task: Task, workload: str | None, library: str) -> LibraryTime:
    from felix.workloads import catalogue

    if workload is None:
        return LibraryTime(None, "only operators of the catalogue have a PyTorch form")
    if importlib.util.find_spec("torch") is None:
        return LibraryTime(None, "PyTorch is not installed")
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
    return timed("torch_child", request, _threads(task), TIMEOUT_S[library])


def _arguments(task: Task) -> list[dict[str, Any]]:
    from felix.builder import task_program

    return [dataclasses.asdict(argument) for argument in task_program.arguments(task.mod)]


def _threads(task: Task) -> int | None:
    """As many as the target has cores; None on a GPU."""
    return int(task.target.attrs["num-cores"]) if task.target.kind.name == "llvm" else None
