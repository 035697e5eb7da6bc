"""A task's tensors: read into main memory, which disturbs nobody, then put on the device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from felix.measure import task_folder
from felix.measure.checking import reference
from felix.measure.cuda import driver, helper_kernels


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The expected contents of an output, flat, and the root mean square of its results."""

    array: reference.Array
    rms: float


@dataclasses.dataclass(frozen=True, slots=True)
class HostTask:
    """A task in main memory: `arrays` has the contents of each argument before a run."""

    folder: str
    args: tuple[reference.Argument, ...]
    arrays: Sequence[reference.Array]
    expected: dict[int, Expected]
    relative: float


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """An output of a task: the address of what is expected, and how it is compared."""

    index: int
    expected: int
    count: int
    kind: int
    rms: float


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTask:
    """A task on the device. `fresh` has a copy of each argument that a run changes."""

    folder: str
    args: tuple[reference.Argument, ...]
    tensors: tuple[int, ...]
    fresh: dict[int, int]
    outputs: tuple[Output, ...]
    relative: float


def read(folder: str, arrays: Sequence[reference.Array] | None) -> HostTask:
    """The task of a folder; `arrays` are its arguments, if they are known."""
    stored = task_folder.read(folder)
    arrays = stored.inputs() if arrays is None else arrays
    expected = {}
    if stored.expected is not None:
        rms = stored.expected.rms
        expected = {i: Expected(a.ravel(), rms[i]) for i, a in stored.expected.outputs.items()}
    return HostTask(folder, stored.args, arrays, expected, stored.description.tolerance)


def place(context: driver.Context, task: HostTask) -> DeviceTask:
    """Put a task on the device."""
    tensors, fresh = upload(context, task.args, task.arrays)
    outputs = []
    for index, expected in task.expected.items():
        array = expected.array
        pointer = context.allocate(array.nbytes)
        context.upload(pointer, array)
        kind = helper_kernels.KINDS.get(task.args[index].dtype, 0)
        count = array.size if kind else array.nbytes
        outputs.append(Output(index, pointer, count, kind, expected.rms))
    return DeviceTask(task.folder, task.args, tensors, fresh, tuple(outputs), task.relative)


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


def free(context: driver.Context, task: DeviceTask) -> None:
    """Give back what `place` took."""
    for pointer in (*task.tensors, *task.fresh.values(), *(o.expected for o in task.outputs)):
        context.free(pointer)


def size(arg: reference.Argument) -> int:
    """Bytes of an argument."""
    return math.prod(arg.shape) * reference.np_dtype(arg.dtype).itemsize
