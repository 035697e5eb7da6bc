"""What the best schedule of a task is compared with: PyTorch, eager or compiled.

It has a process of its own (`processes.child.ask`). BLAS and OpenMP take the number of threads
from the environment when they are loaded.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix.processes import child

if TYPE_CHECKING:
    from felix.task import Task


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryTime:
    """Median latency and how it was measured, or None with the reason."""

    latency_us: float | None
    note: str


def timed(request: Mapping[str, Any], n_threads: int | None, timeout_s: float) -> LibraryTime:
    """What `torch_child`, run as a process, answers to a request."""
    variables = {} if n_threads is None else dict.fromkeys(child.ONE_THREAD, str(n_threads))
    environment = child.for_child(os.environ, variables)
    try:
        answer = child.ask("felix.cli.comparison.torch_child", request, timeout_s, environment)
    except TimeoutError:
        return LibraryTime(None, f"it took over {timeout_s:.0f} s")
    except child.Unanswered as error:
        return LibraryTime(None, f"it failed: {error}")
    return LibraryTime(**answer)


#: Library -> what people call it. "torch" is PyTorch eager, "inductor" its `torch.compile`.
NAMES: Mapping[str, str] = {"torch": "PyTorch", "inductor": "inductor"}
#: Those that are timed unless others are chosen.
DEFAULT = ("torch",)
#: Seconds a library may take in all; compiling with autotuning takes minutes.
TIMEOUT_S: Mapping[str, float] = {"torch": 60.0, "inductor": 600.0}


def measure(task: Task, workload: str | None, libraries: Sequence[str]) -> dict[str, LibraryTime]:
    """Time libraries on a task of this machine, one after the other.

    Args:
        task: the task.
        workload: the task as `workloads.parse` takes it, if it is an operator of the catalogue.
        libraries: of `NAMES`.
    """
    return {library: _torch(task, workload, library) for library in libraries}


def _torch(task: Task, workload: str | None, library: str) -> LibraryTime:
    from felix.builder import task_program
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
        "arguments": [dataclasses.asdict(each) for each in task_program.arguments(task.mod)],
        "device": "cpu" if kind == "llvm" else kind,
        "compiled": library == "inductor",
        "allow_tf32": task.allows_tf32,
    }
    n_threads = int(task.target.attrs["num-cores"]) if kind == "llvm" else None
    return timed(request, n_threads, TIMEOUT_S[library])
