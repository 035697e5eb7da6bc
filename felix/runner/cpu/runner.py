"""The run worker on a CPU: runs a task's reference once, then checks and times candidates.

Reference and candidates are libraries that builders made; all that is compiled here is the probe
of the cores' speed.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import tvm

from felix import target
from felix.runner import description as descriptions
from felix.runner import protocol, timing
from felix.runner.checking import reference
from felix.runner.cpu import contention
from felix.runner.cpu import timing as cpu_timing
from felix.runner.description import Description
from felix.tir import grammar

#: Arrays of up to so many bytes in all are moved for each burst, and former places held.
MOVED_BYTES, N_PLACES = 64 << 20, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A task ready to run: `fresh` holds what each argument is before a call."""

    stored: descriptions.StoredTask
    fresh: list[reference.Array]
    tensors: list[tvm.runtime.Tensor]

    @classmethod
    def read(cls, folder: str, device: tvm.runtime.Device) -> Self:
        """The task of a folder, with its tensors on a device."""
        stored = descriptions.read_task(folder)
        fresh = stored.inputs()
        return cls(stored, fresh, [tvm.runtime.tensor(array, device) for array in fresh])

    def first_us(
        self, func: Any, device: tvm.runtime.Device, quiet: Callable[[], None] = lambda: None
    ) -> float:
        """The time of one call, with outputs that nothing has written, after `quiet`."""
        for tensor, arg, fresh in zip(self.tensors, self.stored.args, self.fresh, strict=True):
            if arg.is_output:
                tensor.copyfrom(fresh)
        device.sync()
        quiet()
        start = time.perf_counter()
        func(*self.tensors)
        device.sync()
        return (time.perf_counter() - start) * 1e6

    def mismatch(self) -> str | None:
        """What of the outputs is wrong after a call, in words; None if nothing is."""
        return self.stored.mismatch(lambda index: self.tensors[index].numpy())


class Runner:
    """Holds the tensors of the current task on the device."""

    def __init__(
        self, device: str, threads: int, quiet: Callable[[], None], rest: Callable[[float], None]
    ) -> None:
        self._device = tvm.runtime.device(device, 0)
        self._threads = threads
        self._quiet = quiet
        self._rest = rest
        self._task: Prepared | None = None
        self._contention: contention.ContentionGuard | None = None
        self._places: collections.deque[list[tvm.runtime.Tensor]] = collections.deque(
            maxlen=N_PLACES
        )

    def prepare(self, folder: str, description: str, binary: str) -> dict[str, Any]:
        """The `prepare` verb: run a task's reference and keep its outputs in the task's folder.

        Args:
            folder: of the task.
            description: the task's, as text.
            binary: library of the reference.
        """
        task = Description.from_json(description)
        if task.device != "cpu":
            raise ValueError(f"a task for {task.device} on a CPU")
        main = tvm.runtime.load_module(binary)["main"]
        checked = reference.compute(run_of(main, task.arguments), task.arguments, task.seed)
        self._guard(task).learn()
        descriptions.write_task(folder, task, checked)
        return {}

    def run(
        self,
        folder: str,
        library: str,
        options: dict[str, Any],
        cache_bytes: int,
        best_us: float | None,
        move: bool,
    ) -> dict[str, Any]:
        """The `run` verb: check one candidate, then time it; `move`: arrays at new places."""
        task = self._moved(self._load(folder)) if move else self._load(folder)
        module = tvm.runtime.load_module(library)
        guard = self._guard(task.stored.description)
        first_us = task.first_us(module["main"], self._device, self._quiet)
        wrong = task.mismatch()
        if wrong is not None:
            return {"error": protocol.ErrorClass.WRONG_RESULT.value, "message": wrong}
        settings = timing.TimingOptions(**options)
        latencies_us = guard.measure_stable(
            lambda: cpu_timing.latencies(
                module,
                self._device,
                task.tensors,
                settings,
                flush=cpu_timing.flush(cache_bytes),
                first_us=first_us,
                best_us=best_us,
            ),
            lambda latencies_us: timing.could_lead(
                latencies_us, settings, best_us, contention.MAX_SLOWDOWN
            ),
        )
        return {"latencies_us": latencies_us}

    def _moved(self, task: Prepared) -> Prepared:
        """The task with small arrays elsewhere in memory.

        Where the pages of 1 MB arrays happened to lie was worth up to 10 % in a 512^3 GEMM.
        """
        if sum(array.nbytes for array in task.fresh) > MOVED_BYTES:
            return task
        self._places.append(task.tensors)  # held, so that the new ones cannot be there
        tensors = [tvm.runtime.tensor(array, self._device) for array in task.fresh]
        self._task = dataclasses.replace(task, tensors=tensors)
        return self._task

    def _guard(self, task: Description) -> contention.ContentionGuard:
        """One for all candidates, so that it knows how fast the cores can be."""
        if self._contention is None:
            self._contention = contention.ContentionGuard(
                contention.multiply_adds(target.parse(task.target), self._threads), self._rest
            )
        return self._contention

    def _load(self, folder: str) -> Prepared:
        if self._task is None or self._task.stored.folder != folder:
            self._task = None  # frees the other task's tensors before these are made
            self._places.clear()
            self._task = Prepared.read(folder, self._device)
        return self._task


def run_of(func: Any, args: Sequence[reference.Argument]) -> reference.Run:
    """A reference as a function from a seed and whether inputs are positive to its outputs."""

    def run(seed: int, positive: bool) -> dict[int, reference.Array]:
        arrays = reference.inputs(args, seed, positive=positive)
        tensors = [tvm.runtime.tensor(_as_float32(array)) for array in arrays]
        func(*tensors)
        return {
            i: tensors[i].numpy().astype(arrays[i].dtype, copy=False)
            for i, arg in enumerate(args)
            if arg.is_output
        }

    return run


def _as_float32(array: reference.Array) -> reference.Array:
    """Float8 as a reference takes it; other arrays as they are."""
    return array.astype(np.float32) if array.dtype.name in grammar.STORAGE_DTYPES else array
