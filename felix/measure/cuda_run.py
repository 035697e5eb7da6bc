"""Checking and timing in the run worker on an NVIDIA GPU.

Plays the `Plan` of `cuda_build` through the driver on a context of the worker's own. A candidate
is first run once on poisoned outputs with a cold L2, between events: this run is checked on the
device against the expected outputs, and its time decides whether there are more. Repeats are put
on the stream back to back, each after a sweep of the L2 that also hides what the host needs to
launch, so events see nothing but kernels. Before repeats, a probe kernel says whether the clock
sank while the device waited.

Everything that uses the device happens after `quiet`, so that the parent can keep others off it.
Reads tasks' folders and files of `cuda_build`; feeds replies to `local`. Latencies in us.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from felix.measure import (
    cuda_build,
    cuda_driver,
    cuda_kernels,
    cuda_reference,
    protocol,
    reference,
    running,
    timing,
)

#: Most repeats put on the stream before waiting for them.
_BATCH = 32
_POISON_FLOAT, _POISON_OTHER = 0xFF, 0x5A
#: Relative tolerance where fast math's approximation of an operation dominates.
_APPROXIMATE = {"tanh": 1.5e-3, "pow": 1e-4, "log": 1e-4, "sin": 1e-4, "cos": 1e-4, "exp": 2e-5,
                "sigmoid": 2e-5, "erf": 2e-5, "rsqrt": 2e-5, "sqrt": 2e-5}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Output:
    """An output of the task: where it is expected, and how it is compared."""

    index: int
    expected: int
    count: int
    kind: int
    rms: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """A task on the device. `fresh` has a copy of each argument that a run changes."""

    folder: str
    args: tuple[reference.Argument, ...]
    tensors: tuple[int, ...]
    fresh: dict[int, int]
    outputs: tuple[_Output, ...]
    relative: float


class Runner:
    """Holds the context, the helpers and the tensors of the current task."""

    def __init__(self, work_dir: str, quiet: Callable[[], None]) -> None:
        self._work_dir = pathlib.Path(work_dir)
        self._quiet = quiet
        self._context: cuda_driver.Context | None = None
        self._task: _Task | None = None
        self._workspaces: list[tuple[int, int]] = []
        #: folder of the task prepared last, and the arguments its reference was computed from
        self._arrays: tuple[str, list[reference.Array]] | None = None

    # ------------------------------------------------------------ verbs

    def prepare(self, folder: str, payload: str, seed: int, check: bool) -> dict[str, Any]:
        """The `prepare` verb: compute the reference of a task and keep it in its folder."""
        mod, target = tvm.ir.load_json(payload)
        args = reference.arguments(mod)
        meta = {"payload": payload, "seed": seed, "positive": False, "check": check}
        if check:
            outputs, meta["positive"] = self._reference(folder, mod, target, args, seed)
            for index, output in outputs.items():
                output.tofile(running.output_path(folder, index))
        part = pathlib.Path(folder, "task.json.part")
        part.write_text(json.dumps(meta))
        part.rename(pathlib.Path(folder, "task.json"))
        return {"tolerance": tolerance(mod)}

    def run(
        self,
        folder: str,
        library: str,
        options: dict[str, Any],
        cache_bytes: int,
        best_us: float | None,
    ) -> dict[str, Any]:
        """The `run` verb: check one candidate, then time it."""
        plan, cubin = cuda_build.read(library)
        task = self._load(folder)
        self._quiet()
        start = time.perf_counter()
        try:
            reply = self._measure(task, plan, cubin, timing.TimingOptions(**options), best_us)
        except cuda_driver.DriverError as error:
            kind = protocol.ErrorClass.LAUNCH
            reply = {"error": kind.value, "message": str(error), "reusable": not error.poisoned}
        reply["device_s"] = time.perf_counter() - start
        return reply

    # ------------------------------------------------------------ candidates

    def _measure(
        self,
        task: _Task,
        plan: cuda_build.Plan,
        cubin: bytes,
        options: timing.TimingOptions,
        best_us: float | None,
    ) -> dict[str, Any]:
        with self._open().loaded(cubin) as module:
            kernels = self._kernels(task.tensors, plan, module)
            first_us = self._first(task, plan, kernels)
            wrong = self._wrong(task)
            if wrong is not None:
                kind = protocol.ErrorClass.WRONG_RESULT
                return {"error": kind.value, "message": wrong, "reusable": False}
            found = timing.adaptive(
                self._sampler(kernels, options, first_us), options, first_us, best_us
            )
            return {"latencies_us": found, "checked": bool(task.outputs), "first_us": first_us}

    def _kernels(
        self, tensors: Sequence[int], plan: cuda_build.Plan, module: ctypes.c_void_p
    ) -> list[cuda_driver.Kernel]:
        """The plan's launches with the addresses of tensors and workspaces."""
        context = self._open()
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
        context = self._open()
        for number, size in enumerate(sizes):
            if number < len(self._workspaces) and self._workspaces[number][1] >= size:
                continue
            if number < len(self._workspaces):
                context.free(self._workspaces[number][0])
                self._workspaces[number] = (context.allocate(size), size)
            else:
                self._workspaces.append((context.allocate(size), size))
        return [pointer for pointer, _ in self._workspaces[: len(sizes)]]

    def _first(
        self, task: _Task, plan: cuda_build.Plan, kernels: Sequence[cuda_driver.Kernel]
    ) -> float:
        """Run once on poisoned outputs and workspaces; the time."""
        context = self._open()
        for index, arg in enumerate(task.args):
            if index in task.fresh:
                context.copy(task.tensors[index], task.fresh[index], _size(arg))
            elif arg.is_output:
                byte = _POISON_FLOAT if reference.is_float(arg.dtype) else _POISON_OTHER
                context.fill(task.tensors[index], byte, _size(arg))
        for (pointer, _), size in zip(self._workspaces, plan.workspaces, strict=False):
            context.fill(pointer, _POISON_FLOAT, size)
        return self._timed(kernels, cold=True, number=1, repeat=1)[0]

    def _sampler(
        self,
        kernels: Sequence[cuda_driver.Kernel],
        options: timing.TimingOptions,
        first_us: float,
    ) -> Callable[[int], list[float]]:
        self._clock.steady()
        number = 1
        if not options.flush:
            warm_us = min(self._timed(kernels, cold=False, number=1, repeat=3))
            number = max(1, math.ceil(options.min_repeat_ms * 1e3 / max(warm_us, 0.5)))

        def sample(repeat: int) -> list[float]:
            found: list[float] = []
            while len(found) < repeat:
                batch = min(_BATCH, repeat - len(found)) if number == 1 else 1
                found += self._timed(kernels, options.flush, number, batch)
            return found

        return sample

    def _timed(
        self, kernels: Sequence[cuda_driver.Kernel], cold: bool, number: int, repeat: int
    ) -> list[float]:
        """`repeat` times of `number` calls each, per call."""
        context = self._open()
        while len(self._events) < repeat:
            self._events.append((context.event(), context.event()))
        events = self._events[:repeat]
        if not cold:  # the host is ahead of the device when the first event comes
            self._helpers.delay(1 + number * len(kernels) // 4)
        for start, end in events:
            if cold:
                self._helpers.sweep()
            context.record(start)
            for _ in range(number):
                for kernel in kernels:
                    context.launch(kernel)
            context.record(end)
        context.synchronize()
        return [context.elapsed_us(start, end) / number for start, end in events]

    def _wrong(self, task: _Task) -> str | None:
        """What differs from the reference, in words; None if nothing does."""
        context = self._open()
        for output in task.outputs:
            arg = task.args[output.index]
            pointer = task.tensors[output.index]
            if output.kind == 0 and reference.is_float(arg.dtype):
                bad = 1  # no kernel for this dtype: compare on the host
            else:
                bad = self._helpers.mismatches(
                    pointer, output.expected, output.count, task.relative, output.rms, output.kind
                )
            if bad:
                got, want = (
                    context.download(where, np.empty(arg.shape, reference.np_dtype(arg.dtype)))
                    for where in (pointer, output.expected)
                )
                said = reference.mismatch(got, want, task.relative)
                if said is not None:
                    return f"output {arg.name}: {said}"
        return None

    # ------------------------------------------------------------ tasks

    def _open(self) -> cuda_driver.Context:
        """The context; made at the first use, which is in the worker and after `fork`."""
        if self._context is None:
            self._context = cuda_driver.Context()
            self._helpers = cuda_kernels.Helpers(self._context, self._work_dir)
            self._clock = cuda_kernels.Clock(self._helpers)
            self._events: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        return self._context

    def _load(self, folder: str) -> _Task:
        if self._task is not None and self._task.folder == folder:
            return self._task
        context = self._open()
        self._free()
        meta = json.loads(pathlib.Path(folder, "task.json").read_text())
        mod, _ = tvm.ir.load_json(meta["payload"])
        args = reference.arguments(mod)
        known, self._arrays = self._arrays, None
        if known is not None and known[0] == folder:
            arrays = known[1]
        else:  # another task or worker came in between
            arrays = reference.inputs(args, meta["seed"], positive=meta["positive"])
        tensors, fresh = self._upload(args, arrays)
        outputs = []
        for index, arg in enumerate(args):
            if arg.is_output and meta["check"]:
                dtype = reference.np_dtype(arg.dtype)
                want = np.fromfile(running.output_path(folder, index), dtype=dtype)
                expected = context.allocate(want.nbytes)
                context.upload(expected, want)
                kind = cuda_kernels.KINDS.get(arg.dtype, 0)
                count = want.size if kind else want.nbytes
                outputs.append(_Output(index, expected, count, kind, reference.rms(want)))
        relative = tolerance(mod)
        self._task = _Task(folder, args, tensors, fresh, tuple(outputs), relative)
        return self._task

    def _upload(
        self, args: Sequence[reference.Argument], arrays: Sequence[reference.Array]
    ) -> tuple[tuple[int, ...], dict[int, int]]:
        context = self._open()
        tensors: list[int] = []
        fresh: dict[int, int] = {}
        for index, (arg, array) in enumerate(zip(args, arrays, strict=True)):
            tensors.append(context.allocate(array.nbytes))
            context.upload(tensors[-1], array)
            if arg.is_input and arg.is_output:
                fresh[index] = context.allocate(array.nbytes)
                context.upload(fresh[index], array)
        return tuple(tensors), fresh

    def _free(self) -> None:
        """Give back the tensors of the task before."""
        if self._task is None:
            return
        context = self._open()
        task, self._task = self._task, None
        used = [*task.tensors, *task.fresh.values(), *(o.expected for o in task.outputs)]
        for pointer in used:
            context.free(pointer)

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
            return running.reference_outputs(mod, running.host(target), args, seed)
        plan, cubin = found
        context = self._open()
        with context.loaded(cubin) as module:
            for positive in (False, True):
                arrays = reference.inputs(args, seed, positive=positive)
                self._arrays = folder, arrays
                tensors, fresh = self._upload(args, arrays)
                self._quiet()
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
                if running.finite(outputs, args):
                    break
        return outputs, positive


def tolerance(mod: tvm.IRModule) -> float:
    """Relative tolerance of a program on a GPU: TVM's builds use fast math there.

    It replaces divisions, roots and transcendental functions by approximations of a few
    units in the last place, tanh by one of 5e-4.
    """
    names = reference.calls(mod)
    found = [limit for name, limit in _APPROXIMATE.items() if name in names]
    return max([reference.tolerance(mod), *found])


def _size(arg: reference.Argument) -> int:
    return math.prod(arg.shape) * reference.np_dtype(arg.dtype).itemsize
