"""The tasks of a lowered model: each distinct program once, and which functions have it."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter

import tvm
import tvm_ffi
from tvm import tirx

from felix import errors, names, task
from felix import target as targets
from felix.frontend import rewriting

_log = logging.getLogger("felix.frontend")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ModelTask:
    """A task, and the names of the PrimFuncs of the module that have its program."""

    task: task.Task
    functions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ModelTasks:
    """The tasks of a model, most float operations first, and the programs left out.

    `refused` has the reason for each function that Felix does not tune.
    """

    tasks: tuple[ModelTask, ...]
    refused: dict[str, str]


def model_tasks(
    mod: tvm.IRModule, target: targets.TargetLike = "llvm", *, allow_tf32: bool = False
) -> ModelTasks:
    """The tasks of a lowered module; a task's weight is how often `main` calls its programs.

    What depends on parameters alone is no task: it is computed once, when a network is loaded.

    Args:
        mod: the module.
        target: what to tune for.
        allow_tf32: products of float32 may be computed in TF32 on a GPU.

    Raises:
        TargetError: unknown target.
    """
    full = targets.parse(target)
    by_program: dict[int, list[tuple[str, int, tirx.PrimFunc]]] = {}
    for name, count in calls(mod).items():
        func = mod[name].without_attr("global_symbol").without_attr("op_pattern")
        key = tvm_ffi.structural_hash(func)
        by_program.setdefault(key, []).append((name, count, func))
    tasks: dict[str, ModelTask] = {}
    refused: dict[str, str] = {}
    for members in by_program.values():
        functions = tuple(name for name, _, _ in members)
        label = names.derived(functions[0])
        weight = sum(count for _, count, _ in members)
        try:
            made = task.Task.from_prim_func(members[0][2], full, label, weight, clamp=True)
        except errors.WorkloadError as error:
            text = "%s is left untuned: %s"
            fields = {"action": "skip_task", "task": label}
            _log.warning(text, label, _reason(error), extra=fields)
            refused.update(dict.fromkeys(functions, _reason(error)))
            continue
        made = made.where_tf32_matters() if allow_tf32 else made
        if (earlier := tasks.get(made.key)) is not None:  # equal once their indices are narrowed
            made = dataclasses.replace(earlier.task, weight=earlier.task.weight + made.weight)
            functions = earlier.functions + functions
        tasks[made.key] = ModelTask(made, functions)
    ordered = sorted(tasks.values(), key=lambda t: t.task.flops * t.task.weight, reverse=True)
    return ModelTasks(tuple(ordered), refused)


def calls(mod: tvm.IRModule) -> Counter[str]:
    """How often a call of `main` calls each PrimFunc, by name.

    Calls that depend on parameters alone are not counted: their results are parameters, too.
    """
    constant = rewriting.constants(mod)
    return Counter(
        str(binding.value.args[0].name_hint)
        for binding in rewriting.bindings(mod["main"])
        if binding.var not in constant and rewriting.operator_name(binding.value) == "call_tir"
    )


def _reason(error: errors.WorkloadError) -> str:
    """What the error says itself, without the words of TVM that it may end with."""
    text = str(error)
    return text.partition(": ")[0] if error.__cause__ is not None else text
