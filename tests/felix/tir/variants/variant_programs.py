"""Programs of variants, and what they compute."""

from __future__ import annotations

import tvm

import felix
from felix.builder import task_program
from felix.runner.checking import reference
from felix.space import diversity
from felix.task import Task
from felix.tir.design_space import variants

Shape = tuple[int, ...]

GPU, CPU = variants.Machine(132, True, 4), variants.Machine(2, False, 16)


def program(task: Task, prefix: variants.Prefix) -> tvm.IRModule:
    schedule = tvm.s_tir.Schedule(prefix.mod or task.mod)
    prefix.apply(schedule)
    return schedule.mod


def result_of(task: Task, mod: tvm.IRModule) -> reference.Array:
    """What the program computes of fixed inputs."""
    arguments = task_program.arguments(task.mod)
    tensors = [
        tvm.runtime.tensor(array) for array in reference.inputs(arguments, 0, positive=False)
    ]
    tvm.tirx.build(mod, "llvm")(*tensors)
    pairs = zip(tensors, arguments, strict=True)
    (result,) = (tensor.numpy() for tensor, argument in pairs if argument.is_output)
    return result


def texts(task: Task, machine: variants.Machine) -> list[str]:
    return [str(prefix.variant) for prefix in variants.of_program(task.mod, machine)]


def searched(task: Task) -> list[str]:
    """Variants of the sketches that are searched."""
    return [sketch.variant.name for sketch in diversity.searched(felix.trace_sketches(task))]


def check_same(task: Task, mod: tvm.IRModule) -> None:
    """A program computes what the task does."""
    expected, actual = result_of(task, task.mod), result_of(task, mod)
    assert reference.mismatch(actual, expected, task_program.tolerance(task.mod)) is None
