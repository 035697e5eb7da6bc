"""Contenders of groups timed alone, before anything is tuned: what needs no search.

PyTorch's operators need no compiling. What they do well gets no trials, and a group whose programs
are far from PyTorch's, faster or slower, needs no comparison in turns (`contest`). On a CPU the
programs of small groups as TVM makes them are compiled together: on few elements a loop takes less
than the call of an operator.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import tvm

from felix.builder import preparation, task_program
from felix.database import store
from felix.network import groups, imported
from felix.network.contenders import contest, excluded, timing
from felix.network.contenders.shipping import Contender
from felix.runner.checking.reference import Argument
from felix.task import Task
from felix.tir import grammar
from felix.torch_calls import functions
from felix.torch_calls.form import TorchForm

#: Whether there is time for another group.
HasTime = Callable[[], bool]
#: Times a contender of a task.
_Timed = Callable[[Task], float | None]


def latencies_us(
    every: Sequence[groups.Group], known: store.Store, has_time: HasTime
) -> contest.Alone:
    """Latencies of groups by the keys of their tasks, in us, with cold caches.

    Args:
        every: groups; those without a task or operators of PyTorch are left out.
        known: where latencies are kept.
        has_time: whether there is time for another group.

    Raises:
        RecordError: the known results cannot be used.
    """
    forms = {
        each.task: each.form
        for each in every
        if each.task is not None and isinstance(each.form, TorchForm)
    }
    subjects = {task: _subject(task, f"{form.key}") for task, form in forms.items()}
    pytorch_us = _looked_up(subjects, known, has_time, lambda task: _pytorch_us(task, forms[task]))
    found: dict[str, dict[Contender, float]] = collections.defaultdict(dict)
    for task, us in pytorch_us.items():
        found[task.key][Contender.PYTORCH] = us
    small = [task for task, us in pytorch_us.items() if contest.least_tvm_us(task) <= us]
    on_cpu = [task for task in small if task.target.kind.name == "llvm"]
    built = functools.cache(lambda: _built(on_cpu))
    subjects = {task: _subject(task, "TVM's program") for task in on_cpu}
    can_build = functools.cache(has_time)  # once they are built, timing them takes no time
    tvm_us = _looked_up(
        subjects, known, can_build, lambda task: _tvm_us(task, built().get(task.key))
    )
    for task, us in tvm_us.items():
        found[task.key][Contender.TVM] = us
    return found


def least_us(alone_us: contest.Alone) -> dict[str, float]:
    """The faster contender of each: what runs a task if tuning finds nothing faster."""
    return {key: min(each.values()) for key, each in alone_us.items()}


def known_us(every: Sequence[groups.Group], known: store.Store) -> contest.Alone:
    """What is known of groups; nothing is timed. Raises as `latencies_us`."""
    return latencies_us(every, known, lambda: False)


def _looked_up(
    subjects: Mapping[Task, str], known: store.Store, has_time: HasTime, timed: _Timed
) -> dict[Task, float]:
    """The latencies of tasks that are known, or timed as long as there is time, and then kept;
    those that do not run are left out."""
    found = dict(zip(subjects, known.find_findings(subjects.items()), strict=True))
    fresh = {}
    for task in subjects:
        if found[task] is None and has_time():
            fresh[task] = {"latency_us": timed(task)}
    known.add_findings((task, subjects[task], finding) for task, finding in fresh.items())
    found |= fresh
    latencies = {task: each["latency_us"] for task, each in found.items() if each is not None}
    return {task: us for task, us in latencies.items() if us is not None}


def _subject(task: Task, what: str) -> str:
    return f"alone, {timing.n_threads(task.target)} threads, torch {torch.__version__}: {what}"


def _pytorch_us(task: Task, form: TorchForm) -> float | None:
    """The latency of a form on random tensors; None if PyTorch does not run it."""
    call = functions.packed(form.to_json())
    try:
        return _latency_us(task, Contender.PYTORCH, call)
    except excluded.TORCH_ERRORS:
        return None


def _tvm_us(task: Task, main: Callable[..., Any] | None) -> float | None:
    return None if main is None else _latency_us(task, Contender.TVM, main)


def _latency_us(task: Task, name: Contender, main: Callable[..., Any]) -> float:
    tensors = [_drawn(each, task) for each in task_program.arguments(task.mod)]
    with timing.undisturbed(task.target):
        return timing.median_us({name: main}, tensors, task.target, turns=1)[name]


def _drawn(argument: Argument, task: Task) -> torch.Tensor:
    """A tensor of an argument's type and shape; integers are 0, which is an index, or divisors."""
    place, dtype = imported.device_of(task.target), imported.torch_dtype(argument.dtype)
    made = torch.full(argument.shape, int(argument.is_divisor), dtype=dtype, device=place)
    return made.normal_() if dtype.is_floating_point else made


def _built(tasks: Sequence[Task]) -> dict[str, Callable[..., Any]]:
    """TVM's programs of tasks for one CPU, compiled together, by the tasks' keys."""
    if not tasks:
        return {}
    names = {task.key: f"program_{number}" for number, task in enumerate(tasks)}
    mod = tvm.IRModule(
        {names[task.key]: task.func.with_attr("global_symbol", names[task.key]) for task in tasks}
    )
    target = tasks[0].target
    try:
        with target:
            made = tvm.tirx.build(preparation.PREPARED(mod), target)
    except grammar.TVM_ERRORS:  # they may contend in a network of their own
        return {}
    return {key: made[name] for key, name in names.items()}
