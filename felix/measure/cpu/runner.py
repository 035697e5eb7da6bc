"""The run worker on a CPU: runs a task's reference once, then checks and times candidates.

Reference and candidates are libraries that builders made; all that is compiled here is the probe
of the cores' speed.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import tvm

from felix import target
from felix.measure import description as descriptions
from felix.measure import protocol, timing
from felix.measure.checking import reference
from felix.measure.cpu import contention, preparation
from felix.measure.cpu import timing as cpu_timing
from felix.measure.description import Description

#: Arrays of up to so many bytes in all are moved for each burst, and former places held.
MOVED_BYTES, N_PLACES = 64 << 20, 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Prepared:
    """A task ready to run: `fresh` holds what each argument is before a call."""

    folder: str
    stored: descriptions.StoredTask
    fresh: list[reference.Array]
    tensors: list[tvm.runtime.Tensor]


class Runner:
    """Holds the tensors of the current task on the device."""

    def __init__(
        self,
        device: str,
        threads: int,
        quiet: Callable[[], None],
        rest: Callable[[float], None],
    ) -> None:
        self._device_name = device
        self._threads = threads
        self._quiet = quiet
        self._rest = rest
        self._task: _Prepared | None = None
        self._contention: contention.ContentionGuard | None = None
        self._places: collections.deque[list[tvm.runtime.Tensor]] = collections.deque(
            maxlen=N_PLACES
        )

    def prepare(self, folder: str, description: str, binary: str) -> dict[str, Any]:
        """The `prepare` verb: run a task's reference and keep its outputs in the task's folder.

        Args:
            folder: of the task.
            description: the task's, as text.
            binary: library of the reference; empty: outputs are not checked.
        """
        task = Description.from_json(description)
        if task.device != "cpu":
            raise ValueError(f"a task for {task.device} on a CPU")
        checked = None
        if binary:
            main = tvm.runtime.load_module(binary)["main"]
            checked = reference.compute(
                preparation.run_of(main, task.arguments), task.arguments, task.seed
            )
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
        device = tvm.runtime.device(self._device_name, 0)
        module = tvm.runtime.load_module(library)
        func = module["main"]
        for tensor, arg, fresh in zip(task.tensors, task.stored.args, task.fresh, strict=True):
            if arg.is_output:
                tensor.copyfrom(fresh)
        device.sync()
        guard = self._guard(task.stored.description)
        self._quiet()
        start = time.perf_counter()
        func(*task.tensors)
        device.sync()
        first_us = (time.perf_counter() - start) * 1e6
        wrong = task.stored.mismatch(lambda index: task.tensors[index].numpy())
        if wrong is not None:
            return {"error": protocol.ErrorClass.WRONG_RESULT.value, "message": wrong}
        settings = timing.TimingOptions(**options)
        latencies_us = guard.measure_stable(
            lambda: cpu_timing.latencies(
                module,
                device,
                task.tensors,
                settings,
                cache_bytes=cache_bytes,
                first_us=first_us,
                best_us=best_us,
            ),
            lambda latencies_us: timing.could_lead(
                latencies_us, settings, best_us, contention.MAX_SLOWDOWN
            ),
        )
        return {"latencies_us": latencies_us, "checked": task.stored.expected is not None}

    def _moved(self, task: _Prepared) -> _Prepared:
        """The task with small arrays elsewhere in memory.

        Where the pages of 1 MB arrays happened to lie was worth up to 10 % in a 512^3 GEMM.
        """
        if sum(array.nbytes for array in task.fresh) > MOVED_BYTES:
            return task
        self._places.append(task.tensors)  # held, so that the new ones cannot be there
        device = tvm.runtime.device(self._device_name, 0)
        tensors = [tvm.runtime.tensor(array, device) for array in task.fresh]
        self._task = dataclasses.replace(task, tensors=tensors)
        return self._task

    def _guard(self, task: Description) -> contention.ContentionGuard:
        """One for all candidates, so that it knows how fast the cores can be."""
        if self._contention is None:
            self._contention = contention.ContentionGuard(
                contention.multiply_adds(target.parse(task.target), self._threads),
                self._rest,
            )
        return self._contention

    def _load(self, folder: str) -> _Prepared:
        if self._task is not None and self._task.folder == folder:
            return self._task
        stored = descriptions.read_task(folder)
        fresh = stored.inputs()
        device = tvm.runtime.device(self._device_name, 0)
        self._task = None  # frees the other task's tensors before these are made
        self._places.clear()
        self._task = _Prepared(
            folder=folder,
            stored=stored,
            fresh=fresh,
            tensors=[tvm.runtime.tensor(array, device) for array in fresh],
        )
        return self._task
