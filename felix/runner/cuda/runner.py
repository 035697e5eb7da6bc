"""The run worker on an NVIDIA GPU: runs a task's reference, then checks and times candidates.

It plays a launch plan (`felix.launch_plan`) through the driver on a context of the worker's own. A
candidate is first run once on poisoned outputs with a cold L2: this run is checked on the device
against the expected outputs, and its time decides whether there are more. `timing` times the
repeats, and `clock` guards them against a clock that sank.

It runs what builders made and gets no program: neither TVM nor a client's code is needed here.

Everything that uses the device happens after `quiet`, so that the parent can keep others off it;
what comes before reads files and computes with numpy. A candidate is charged for what
fails while it runs (`LAUNCH`), not for a device that cannot be opened or is full before.
"""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from felix import launch_plan
from felix.runner import description as descriptions
from felix.runner import protocol, timing
from felix.runner.checking import reference
from felix.runner.cuda import driver, tensors
from felix.runner.cuda import timing as cuda_timing

_POISON_FLOAT, _POISON_OTHER = 0xFF, 0x5A
#: A task in main memory, with the contents of each argument before a run.
_HostTask = tuple[descriptions.StoredTask, list[reference.Array]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Device:
    """The context, and what stays on the device from one candidate to the next.

    `workspaces` has address and size of each.
    """

    context: driver.Context
    helpers: tensors.Helpers
    clock: cuda_timing.ClockGuard
    timer: cuda_timing.KernelTimer
    workspaces: dict[int, tuple[int, int]]


class Runner:
    """Holds the device and the tensors of the current task."""

    def __init__(self, work_dir: str, quiet: Callable[[], None]) -> None:
        self._work_dir = pathlib.Path(work_dir)
        self._quiet = quiet
        self._device: _Device | None = None
        self._task: tensors.DeviceTask | None = None
        #: folder of the task prepared last, and the arguments its reference was computed from
        self._arrays: tuple[str, list[reference.Array]] | None = None

    # ------------------------------------------------------------ verbs

    def open(self, arch: str) -> dict[str, Any]:
        """The `open` verb: use the device for all that measuring does, before there is a task.

        Raises:
            DriverError, MeasureError: something of it does not work.
        """
        tensors.cubin(arch, self._work_dir)  # not while others wait
        self._quiet()
        self._open().helpers.check()
        return {}

    def prepare(self, folder: str, description: str, binary: str) -> dict[str, Any]:
        """The `prepare` verb: run a task's reference and keep its outputs in the task's folder.

        Args:
            folder: of the task.
            description: the task's, as text.
            binary: plan and cubin of the reference, or its outputs.
        """
        task = descriptions.Description.from_json(description)
        if task.device != "cuda":
            raise ValueError(f"a task for {task.device} on a GPU")
        tensors.cubin(task.target, self._work_dir)  # not while others wait
        descriptions.write_task(folder, task, self._expected(folder, task, binary))
        return {}

    def run(
        self,
        folder: str,
        library: str,
        options: dict[str, Any],
        cache_bytes: int,
        best_us: float | None,
    ) -> dict[str, Any]:
        """The `run` verb: check one candidate, then time it."""
        plan, cubin = descriptions.read_program(library)
        host_task = self._host_task(folder)
        self._quiet()
        try:
            task = self._placed(host_task)
        except driver.DriverError as error:  # before the candidate is there
            kind = protocol.ErrorClass.INFRASTRUCTURE
            message = f"putting the task on the GPU: {error}"
            return {"error": kind.value, "message": message, "reusable": False}
        try:
            return self._measure(task, plan, cubin, timing.TimingOptions(**options), best_us)
        except driver.DriverError as error:
            kind = protocol.ErrorClass.LAUNCH
            return {"error": kind.value, "message": str(error), "reusable": not error.poisoned}

    # ------------------------------------------------------------ candidates

    def _measure(
        self,
        task: tensors.DeviceTask,
        plan: launch_plan.LaunchPlan,
        cubin: bytes,
        options: timing.TimingOptions,
        best_us: float | None,
    ) -> dict[str, Any]:
        device = self._open()
        with device.context.loaded(cubin) as module:
            kernels = self._kernels(task.tensors, plan, module)
            first_us = self._first_us(task, plan, kernels)
            mismatch = self._mismatch(task)
            if mismatch is not None:
                kind = protocol.ErrorClass.WRONG_RESULT
                return {"error": kind.value, "message": mismatch, "reusable": False}
            latencies_us = device.clock.measure_stable(
                lambda: timing.adaptive(
                    device.timer.sampler(kernels, options), options, first_us, best_us
                ),
                lambda latencies_us, change: timing.could_lead(
                    latencies_us, options, best_us, change
                ),
            )
            return {"latencies_us": latencies_us}

    def _kernels(
        self, addresses: Sequence[int], plan: launch_plan.LaunchPlan, module: ctypes.c_void_p
    ) -> list[driver.Kernel]:
        """The plan's launches with the addresses of tensors and workspaces."""
        context = self._open().context
        return context.kernels(module, plan, [*addresses, *self._workspaces(plan.workspaces)])

    def _workspaces(self, sizes: Sequence[int]) -> list[int]:
        """Addresses of device memory of at least these sizes, for the next candidate as well."""
        device = self._open()
        workspaces = device.workspaces
        for number, size in enumerate(sizes):
            if number in workspaces and workspaces[number][1] < size:
                pointer, _ = workspaces.pop(number)
                device.context.free(pointer)
            if number not in workspaces:
                workspaces[number] = device.context.allocate(size), size
        return [workspaces[number][0] for number in range(len(sizes))]

    def _first_us(
        self,
        task: tensors.DeviceTask,
        plan: launch_plan.LaunchPlan,
        kernels: Sequence[driver.Kernel],
    ) -> float:
        """Run once on poisoned outputs and workspaces; the time of that run."""
        device = self._open()
        context = device.context
        for index, arg in enumerate(task.args):
            if index in task.fresh:
                context.copy(task.tensors[index], task.fresh[index], tensors.size(arg))
            elif arg.is_output:
                byte = _POISON_FLOAT if reference.is_float(arg.dtype) else _POISON_OTHER
                context.fill(task.tensors[index], byte, tensors.size(arg))
        for pointer, size in zip(self._workspaces(plan.workspaces), plan.workspaces, strict=True):
            context.fill(pointer, _POISON_FLOAT, size)
        return device.timer.cold_us(kernels, repeat=1)[0]

    def _mismatch(self, task: tensors.DeviceTask) -> str | None:
        """What differs from the reference, in words; None if nothing does."""
        for output in task.outputs:
            message = self._mismatch_of(task, output)
            if message is not None:
                return f"output {task.args[output.index].name}: {message}"
        return None

    def _mismatch_of(self, task: tensors.DeviceTask, output: tensors.Output) -> str | None:
        """What differs in an output: floats never leave the device, whatever differs."""
        arg, actual, relative = task.args[output.index], task.tensors[output.index], task.relative
        if output.kind or not reference.is_float(arg.dtype):
            differ, first = self._open().helpers.mismatches(
                actual, output.expected, output.count, relative, output.rms, output.kind
            )
            if differ == 0:
                return None
            if output.kind:
                values = (
                    self._element(actual, arg, first),
                    self._element(output.expected, arg, first),
                )
                return reference.describe_mismatch(differ, first, arg.shape, values, relative)
        return reference.mismatch(
            self._download(actual, arg), self._download(output.expected, arg), relative, output.rms
        )

    def _element(self, pointer: int, arg: reference.Argument, index: int) -> Any:
        """An element of a tensor on the device."""
        one = np.empty(1, reference.np_dtype(arg.dtype))
        return self._open().context.download(pointer + index * one.itemsize, one)[0]

    def _download(self, pointer: int, arg: reference.Argument) -> reference.Array:
        array = np.empty(arg.shape, reference.np_dtype(arg.dtype))
        return self._open().context.download(pointer, array)

    # ------------------------------------------------------------ tasks

    def _open(self) -> _Device:
        """The device; opened at the first use, which is in the worker and after `fork`."""
        if self._device is None:
            context = driver.Context()
            helpers = tensors.Helpers(context, self._work_dir)
            guard = cuda_timing.ClockGuard(helpers)
            timer = cuda_timing.KernelTimer(context, helpers)
            self._device = _Device(context, helpers, guard, timer, workspaces={})
        return self._device

    def _host_task(self, folder: str) -> _HostTask | None:
        """A task that is to be put on the device; None if it is there."""
        if self._task is not None and self._task.folder == folder:
            return None
        prepared, arrays = self._arrays or ("", [])
        self._arrays = None
        stored = descriptions.read_task(folder)
        return stored, arrays if prepared == folder else stored.inputs()

    def _placed(self, host_task: _HostTask | None) -> tensors.DeviceTask:
        """The task on the device, alone: memory of the task before is given back first."""
        device = self._open()
        if host_task is not None:
            before, self._task = self._task, None
            if before is not None:
                tensors.free(device.context, before)
            while device.workspaces:
                _, (pointer, _) = device.workspaces.popitem()
                device.context.free(pointer)
            self._task = tensors.place(device.context, *host_task)
        assert self._task is not None
        return self._task

    def _expected(
        self, folder: str, task: descriptions.Description, binary: str
    ) -> reference.Expected:
        """What the outputs have to be."""
        args = task.arguments
        if binary.endswith(protocol.OUTPUTS):
            return reference.read_expected(binary, args)
        program = descriptions.read_program(binary)

        def run(drawn: int, positive: bool) -> dict[int, reference.Array]:
            arrays = reference.inputs(args, drawn, positive=positive)
            if drawn == task.seed:
                self._arrays = folder, arrays
            self._quiet()
            return self._outputs(args, arrays, *program)

        return reference.compute(run, args, task.seed)

    def _outputs(
        self,
        args: tuple[reference.Argument, ...],
        arrays: list[reference.Array],
        plan: launch_plan.LaunchPlan,
        cubin: bytes,
    ) -> dict[int, reference.Array]:
        """Outputs of a program for these arguments, by argument index."""
        context = self._open().context
        with context.loaded(cubin) as module:
            addresses, fresh = tensors.upload(context, args, arrays)
            for kernel in self._kernels(addresses, plan, module):
                context.launch(kernel)
            context.synchronize()
            outputs = {
                index: self._download(addresses[index], arg)
                for index, arg in enumerate(args)
                if arg.is_output
            }
            for pointer in (*addresses, *fresh.values()):
                context.free(pointer)
        return outputs
