"""Checking and timing in the run worker on an NVIDIA GPU.

Plays the `Plan` of `cuda_build` through the driver on a context of the worker's own. A candidate
is first run once on poisoned outputs with a cold L2, between events: this run is checked on the
device against the expected outputs, and its time decides whether there are more. Repeats are put
on the stream back to back, each after a sweep of the L2 that also hides what the host needs to
launch, so events see nothing but kernels. A probe kernel says before repeats whether the clock
sank while the device waited, and after them whether it held.

Everything that uses the device happens after `quiet`, so that the parent can keep others off it;
what comes before reads files, compiles and computes with numpy. A candidate is charged for what
fails while it runs (`LAUNCH`), not for a device that cannot be had or is full before.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from felix.measure import protocol, reference, timing
from felix.measure.cpu import runner
from felix.measure.cuda import (
    build,
    driver,
    helper_kernels,
)
from felix.measure.cuda import (
    reference as cuda_reference,
)
from felix.measure.cuda import (
    tensors as device_tensors,
)

#: Most repeats put on the stream before waiting for them.
_BATCH = 32
#: Launches of warm calls behind one delay, if one call has no more. With the delay's they are
#: fewer than a stream takes (1,024); if the host had to wait for room, the times of short kernels
#: would have its launches in them.
_QUEUED = 512
_POISON_FLOAT, _POISON_OTHER = 0xFF, 0x5A


@dataclasses.dataclass(frozen=True, slots=True)
class _Device:
    """The context, and what stays on the device from one candidate to the next.

    `workspaces` has address and size of each.
    """

    context: driver.Context
    helpers: helper_kernels.Helpers
    clock: helper_kernels.Clock
    events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]]
    workspaces: dict[int, tuple[int, int]]


class Runner:
    """Holds the device and the tensors of the current task."""

    def __init__(self, work_dir: str, quiet: Callable[[], None]) -> None:
        self._work_dir = pathlib.Path(work_dir)
        self._quiet = quiet
        self._device: _Device | None = None
        self._task: device_tensors.Task | None = None
        #: folder of the task prepared last, and the arguments its reference was computed from
        self._arrays: tuple[str, list[reference.Array]] | None = None

    # ------------------------------------------------------------ verbs

    def prepare(self, folder: str, payload: str, seed: int, check: bool) -> dict[str, Any]:
        """The `prepare` verb: compute the reference of a task and keep it in its folder."""
        mod, target = tvm.ir.load_json(payload)
        helper_kernels.cubin(str(target.attrs["arch"]), self._work_dir)  # not while others wait
        args = reference.arguments(mod)
        meta = {"payload": payload, "seed": seed, "positive": False, "check": check}
        if check:
            outputs, meta["positive"] = self._reference(folder, mod, target, args, seed)
            for index, output in outputs.items():
                output.tofile(runner.output_path(folder, index))
        part = pathlib.Path(folder, "task.json.part")
        part.write_text(json.dumps(meta))
        part.rename(pathlib.Path(folder, "task.json"))
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
        plan, cubin = build.read(library)
        contents = self._contents(folder)
        self._quiet()
        try:
            task = self._placed(contents)
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
        task: device_tensors.Task,
        plan: build.Plan,
        cubin: bytes,
        options: timing.TimingOptions,
        best_us: float | None,
    ) -> dict[str, Any]:
        device = self._open()
        with device.context.loaded(cubin) as module:
            kernels = self._kernels(task.tensors, plan, module)
            first_us = self._first(task, plan, kernels)
            wrong = self._wrong(task)
            if wrong is not None:
                kind = protocol.ErrorClass.WRONG_RESULT
                return {"error": kind.value, "message": wrong, "reusable": False}
            found = device.clock.measure_stable(
                lambda: timing.adaptive(
                    self._sampler(kernels, options), options, first_us, best_us
                ),
                lambda found, changed: timing.could_lead(found, options, best_us, changed),
            )
            return {"latencies_us": found, "checked": bool(task.outputs)}

    def _kernels(
        self, tensors: Sequence[int], plan: build.Plan, module: ctypes.c_void_p
    ) -> list[driver.Kernel]:
        """The plan's launches with the addresses of tensors and workspaces."""
        context = self._open().context
        pointers = [*tensors, *self._workspace(plan.workspaces)]
        return [
            context.kernel(
                module, launch.kernel, launch.extents,
                [ctypes.c_uint64(pointers[number]) for number in launch.args],
                launch.shared_bytes,
            )
            for launch in plan.launches
        ]  # fmt: skip

    def _workspace(self, sizes: Sequence[int]) -> list[int]:
        """Device memory of at least these sizes, kept for the next candidate."""
        device = self._open()
        kept = device.workspaces
        for number, size in enumerate(sizes):
            if number in kept and kept[number][1] < size:
                pointer, _ = kept.pop(number)
                device.context.free(pointer)
            if number not in kept:
                kept[number] = device.context.allocate(size), size
        return [kept[number][0] for number in range(len(sizes))]

    def _first(
        self, task: device_tensors.Task, plan: build.Plan, kernels: Sequence[driver.Kernel]
    ) -> float:
        """Run once on poisoned outputs and workspaces; the time."""
        context = self._open().context
        for index, arg in enumerate(task.args):
            if index in task.fresh:
                context.copy(task.tensors[index], task.fresh[index], device_tensors.size(arg))
            elif arg.is_output:
                byte = _POISON_FLOAT if reference.is_float(arg.dtype) else _POISON_OTHER
                context.fill(task.tensors[index], byte, device_tensors.size(arg))
        for pointer, size in zip(self._workspace(plan.workspaces), plan.workspaces, strict=True):
            context.fill(pointer, _POISON_FLOAT, size)
        return self._timed(kernels, cold=True, number=1, repeat=1)[0]

    def _sampler(
        self,
        kernels: Sequence[driver.Kernel],
        options: timing.TimingOptions,
    ) -> Callable[[int], list[float]]:
        def cold(repeat: int) -> list[float]:
            found: list[float] = []
            while len(found) < repeat:
                batch = min(_BATCH, repeat - len(found))
                found += self._timed(kernels, cold=True, number=1, repeat=batch)
            return found

        if options.flush:
            return cold

        def warm(calls: int) -> float:
            return self._timed(kernels, cold=False, number=calls, repeat=1)[0]

        once_us = min(warm(1) for _ in range(3))
        number = max(1, math.ceil(options.min_repeat_ms * 1e3 / max(once_us, 0.5)))
        calls = min(number, max(1, _QUEUED // len(kernels)))
        bundles = [calls] * math.ceil(number / calls)
        return lambda repeat: [statistics.fmean(map(warm, bundles)) for _ in range(repeat)]

    def _timed(
        self, kernels: Sequence[driver.Kernel], cold: bool, number: int, repeat: int
    ) -> list[float]:
        """`repeat` times of `number` calls each, per call."""
        device = self._open()
        context = device.context
        while len(device.events) < repeat:
            device.events.append((context.event(), context.event()))
        events = device.events[:repeat]
        if not cold:  # if a launch takes under 15 us, all are queued before the first event comes
            device.helpers.delay(1 + repeat * number * len(kernels) // 2)
        for start, end in events:
            if cold:
                device.helpers.sweep()
            context.record(start)
            for _ in range(number):
                for kernel in kernels:
                    context.launch(kernel)
            context.record(end)
        context.synchronize()
        return [context.elapsed_us(start, end) / number for start, end in events]

    def _wrong(self, task: device_tensors.Task) -> str | None:
        """What differs from the reference, in words; None if nothing does."""
        device = self._open()
        for output in task.outputs:
            arg = task.args[output.index]
            pointer = task.tensors[output.index]
            if output.kind == 0 and reference.is_float(arg.dtype):
                bad = 1  # no kernel for this dtype: compare on the host
            else:
                bad = device.helpers.mismatches(
                    pointer, output.expected, output.count, task.relative, output.rms, output.kind
                )
            if bad:
                got, want = (
                    device.context.download(
                        where, np.empty(arg.shape, reference.np_dtype(arg.dtype))
                    )
                    for where in (pointer, output.expected)
                )
                said = reference.mismatch(got, want, task.relative)
                if said is not None:
                    return f"output {arg.name}: {said}"
        return None

    # ------------------------------------------------------------ tasks

    def _open(self) -> _Device:
        """The device; opened at the first use, which is in the worker and after `fork`."""
        if self._device is None:
            context = driver.Context()
            helpers = helper_kernels.Helpers(context, self._work_dir)
            clock = helper_kernels.Clock(helpers)
            self._device = _Device(context, helpers, clock, events=[], workspaces={})
        return self._device

    def _contents(self, folder: str) -> device_tensors.Contents | None:
        """What a task's candidates need on the device; None if it is there."""
        if self._task is not None and self._task.folder == folder:
            return None
        known, self._arrays = self._arrays, None
        arrays = known[1] if known is not None and known[0] == folder else None
        return device_tensors.read(folder, arrays)

    def _placed(self, contents: device_tensors.Contents | None) -> device_tensors.Task:
        """The task on the device, alone: memory of the task before is given back first."""
        device = self._open()
        if contents is not None:
            before, self._task = self._task, None
            if before is not None:
                device_tensors.free(device.context, before)
            while device.workspaces:
                _, (pointer, _) = device.workspaces.popitem()
                device.context.free(pointer)
            self._task = device_tensors.place(device.context, contents)
        assert self._task is not None
        return self._task

    def _reference(
        self,
        folder: str,
        mod: tvm.IRModule,
        target: tvm.target.Target,
        args: tuple[reference.Argument, ...],
        seed: int,
    ) -> tuple[dict[int, reference.Array], bool]:
        """Expected outputs by argument index, and whether positive inputs were needed."""
        found = cuda_reference.program(mod, target)
        if found is None:
            return runner.reference_outputs(mod, runner.host(target), args, seed)
        for positive in (False, True):
            arrays = reference.inputs(args, seed, positive=positive)
            self._arrays = folder, arrays
            self._quiet()
            outputs = self._outputs(args, arrays, *found)
            if runner.finite(outputs, args):
                break
        return outputs, positive

    def _outputs(
        self,
        args: tuple[reference.Argument, ...],
        arrays: list[reference.Array],
        plan: build.Plan,
        cubin: bytes,
    ) -> dict[int, reference.Array]:
        """What a program makes of its arguments, by argument index."""
        context = self._open().context
        with context.loaded(cubin) as module:
            tensors, fresh = device_tensors.upload(context, args, arrays)
            for kernel in self._kernels(tensors, plan, module):
                context.launch(kernel)
            context.synchronize()
            outputs = {
                index: context.download(
                    tensors[index], np.empty(arg.shape, reference.np_dtype(arg.dtype))
                )
                for index, arg in enumerate(args)
                if arg.is_output
            }
            for pointer in (*tensors, *fresh.values()):
                context.free(pointer)
        return outputs
