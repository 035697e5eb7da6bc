"""A task's tensors: read on the host, where that disturbs nobody, then put on the device."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import tvm

from felix.measure import reference
from felix.measure.cpu import runner
from felix.measure.cuda import driver, helper_kernels
from felix.measure.cuda import reference as cuda_reference


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What an output is to be, and its root mean square."""

    array: reference.Array
    rms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """A task on the host: `arrays` holds what each argument is before a run."""

    folder: str
    args: tuple[reference.Argument, ...]
    arrays: Sequence[reference.Array]
    expected: dict[int, Expected]
    relative: float


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """An output of the task: where it is expected, and how it is compared."""

    index: int
    expected: int
    count: int
    kind: int
    rms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task on the device. `fresh` has a copy of each argument that a run changes."""

    folder: str
    args: tuple[reference.Argument, ...]
    tensors: tuple[int, ...]
    fresh: dict[int, int]
    outputs: tuple[Output, ...]
    relative: float


def read(folder: str, arrays: Sequence[reference.Array] | None) -> Contents:
    """The task of a folder; its arguments are `arrays`, if they are known."""
    meta = json.loads(pathlib.Path(folder, "task.json").read_text())
    mod, _ = tvm.ir.load_json(meta["payload"])
    args = reference.arguments(mod)
    if arrays is None:
        arrays = reference.inputs(args, meta["seed"], positive=meta["positive"])
    expected = {}
    for index, arg in enumerate(args):
        if arg.is_output and meta["check"]:
            dtype = reference.np_dtype(arg.dtype)
            want = np.fromfile(runner.output_path(folder, index), dtype=dtype)
            expected[index] = Expected(want, reference.rms(want))
    return Contents(folder, args, arrays, expected, cuda_reference.tolerance(mod))


def place(context: driver.Context, contents: Contents) -> Task:
    """Put a task on the device."""
    tensors, fresh = upload(context, contents.args, contents.arrays)
    outputs = []
    for index, expected in contents.expected.items():
        want = expected.array
        pointer = context.allocate(want.nbytes)
        context.upload(pointer, want)
        kind = helper_kernels.KINDS.get(contents.args[index].dtype, 0)
        count = want.size if kind else want.nbytes
        outputs.append(Output(index, pointer, count, kind, expected.rms))
    return Task(contents.folder, contents.args, tensors, fresh, tuple(outputs), contents.relative)


def upload(
    context: driver.Context,
    args: Sequence[reference.Argument],
    arrays: Sequence[reference.Array],
) -> tuple[tuple[int, ...], dict[int, int]]:
    """Put the arguments on the device, a second time what a run reads and changes."""
    tensors: list[int] = []
    fresh: dict[int, int] = {}
    for index, (arg, array) in enumerate(zip(args, arrays, strict=True)):
        tensors.append(context.allocate(array.nbytes))
        context.upload(tensors[-1], array)
        if arg.is_input and arg.is_output:
            fresh[index] = context.allocate(array.nbytes)
            context.upload(fresh[index], array)
    return tuple(tensors), fresh


def free(context: driver.Context, task: Task) -> None:
    """Give back what `place` took."""
    for pointer in (*task.tensors, *task.fresh.values(), *(o.expected for o in task.outputs)):
        context.free(pointer)


def size(arg: reference.Argument) -> int:
    """Bytes of an argument."""
    return math.prod(arg.shape) * reference.np_dtype(arg.dtype).itemsize
