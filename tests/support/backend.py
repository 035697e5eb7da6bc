"""The backend of `torch.compile` with known results of a test's own."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import torch

from felix.builder import payload
from felix.database import store
from felix.database.outcome import KnownResult
from felix.network.backend import entry, report
from felix.task import Task
from tests.support import networks


def known(folder: pathlib.Path) -> store.Store:
    """The known results of a test."""
    return store.Store(folder / "known.sqlite")


def compiled(model: Any, folder: pathlib.Path, **options: Any) -> Any:
    """A model compiled with the backend; it runs what is known, however slow it is.

    `dynamic` and `fullgraph` are those of `torch.compile`.
    """
    others = {name: options.pop(name) for name in ("dynamic", "fullgraph") if name in options}
    chosen = {
        "known_results": str(folder / "known.sqlite"),
        "target": networks.TARGET,
        "never_slower": False,
    }
    return torch.compile(model, backend=entry.backend, options=chosen | options, **others)


def outcome(task: Task) -> KnownResult:
    """A result of a task whose best program is the unscheduled one."""
    program = payload.of(task.mod, task.target)
    return KnownResult(tuned_us=10.0, program=program, default_us=50.0, n_trials=1)


def learn(folder: pathlib.Path) -> int:
    """Make everything known that is queued; how many tasks that are."""
    results = known(folder)
    waiting = store.queued(results)
    for entry_ in waiting:
        task = Task.from_json(entry_.task, trusted=True)
        results.add(task, outcome(task))
    store.unqueue(results, waiting)
    return len(waiting)


def parts() -> Sequence[report.PartReport]:
    """The parts of all graphs."""
    return entry.backend_report().parts


def tuned_operators() -> set[str]:
    """Names of the operators that Felix runs, as in "linear"."""
    return {
        name.removeprefix("aten.").partition(".")[0]
        for part in parts()
        if part.is_tuned
        for name in part.operators
    }
