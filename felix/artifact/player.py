"""Plays a launch plan through the CUDA driver: a generated kernel without TVM and without Felix.

This file imports nothing of Felix: an artifact has a copy of it beside its `run.py`, with
`driver.py` and `launch_plan.py`. To call the kernel from a program of your own, do as `run.py`:

    context = driver.Context()
    plan = launch_plan.LaunchPlan.from_json(open("plan.json").read())
    program = player.LoadedProgram(context, plan, open("kernel.cubin", "rb").read(), arrays)
    program.run()
    outputs = program.arrays()

`arrays` are numpy's, in the order of `arguments` in manifest.json, outputs included.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from felix import launch_plan
    from felix.runner.cuda import driver

#: The device is kept busy so long before it is timed, because an idle one has a lower clock.
WARM_S = 0.3
#: Repeats that are put on the stream before waiting for them.
_BATCH = 32


class LoadedProgram:
    """A plan and its cubin on the device, with memory of its own for tensors and workspaces.

    Args:
        context: of the device.
        plan: what a call does.
        cubin: with the plan's kernels.
        arrays: the tensors, outputs included; they are copied to the device.
    """

    def __init__(
        self,
        context: driver.Context,
        plan: launch_plan.LaunchPlan,
        cubin: bytes,
        arrays: Sequence[Any],
    ) -> None:
        self._context = context
        self._arrays = [np.ascontiguousarray(array) for array in arrays]
        sizes = [*(array.nbytes for array in self._arrays), *plan.workspaces]
        self._addresses = [context.allocate(size) for size in sizes]
        for address, array in zip(self._addresses, self._arrays, strict=False):
            context.upload(address, array)
        self._module = context.load(cubin)
        self._kernels = context.kernels(self._module, plan, self._addresses)

    def launch(self) -> None:
        """Put one call on the stream."""
        for kernel in self._kernels:
            self._context.launch(kernel)

    def run(self) -> None:
        """One call, to its end."""
        self.launch()
        self._context.synchronize()

    def arrays(self) -> list[Any]:
        """The tensors as they are on the device now."""
        return [
            self._context.download(address, np.empty_like(array))
            for address, array in zip(self._addresses, self._arrays, strict=False)
        ]

    def free(self) -> None:
        """Give the memory of the device back."""
        for address in self._addresses:
            self._context.free(address)


class Timer:
    """Times calls with a cold L2, as Felix's measuring does; `helpers` has the kernel for that."""

    def __init__(self, context: driver.Context, helpers: bytes) -> None:
        self._context = context
        self._module = context.load(helpers)
        words = context.l2_bytes * 2 // 16
        swept, sink = context.allocate(words * 16), context.allocate(16)
        context.fill(swept, 0, words * 16)
        args = [ctypes.c_uint64(swept), ctypes.c_uint64(words), ctypes.c_uint64(sink)]
        self._sweep = context.kernel(self._module, "felix_sweep", (528, 1, 1, 512, 1, 1), args)
        self._events = [(context.event(), context.event()) for _ in range(_BATCH)]

    def median_us(self, program: LoadedProgram, repeats: int) -> float:
        """Median time of so many calls at the clock of a busy device."""
        until_s = time.perf_counter() + WARM_S
        while time.perf_counter() < until_s:
            self._times_us(program, 1)
        times_us: list[float] = []
        while len(times_us) < repeats:
            times_us += self._times_us(program, min(_BATCH, repeats - len(times_us)))
        return statistics.median(times_us)

    def _times_us(self, program: LoadedProgram, count: int) -> list[float]:
        context = self._context
        events = self._events[:count]
        for start, end in events:
            context.launch(self._sweep)
            context.record(start)
            program.launch()
            context.record(end)
        context.synchronize()
        return [context.elapsed_us(start, end) for start, end in events]
