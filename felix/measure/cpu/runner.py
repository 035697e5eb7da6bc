"""What the run worker does: prepare a task's reference once, then check and time candidates."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from felix.measure import protocol, reference, timing
from felix.measure.cpu import contention

#: Arrays of up to so many bytes in all are moved for each burst, and former places held.
MOVED_BYTES, N_PLACES = 64 << 20, 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Prepared:
    """A task ready to run: `fresh` holds what each argument is before a call."""

    folder: str
    args: tuple[reference.Argument, ...]
    fresh: list[reference.Array]
    tensors: list[Any]
    expected: dict[int, reference.Array]
    relative: float
    target: tvm.target.Target


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
        self._calm: contention.ContentionGuard | None = None
        self._places: collections.deque[list[Any]] = collections.deque(maxlen=N_PLACES)

    def prepare(self, folder: str, payload: str, seed: int, check: bool) -> dict[str, Any]:
        """The `prepare` verb: compute the reference of a task and keep it in its folder."""
        mod, target = tvm.ir.load_json(payload)
        args = reference.arguments(mod)
        meta = {"payload": payload, "seed": seed, "positive": False, "check": check}
        if check:
            outputs, meta["positive"] = reference_outputs(mod, host(target), args, seed)
            for index, output in outputs.items():
                output.tofile(output_path(folder, index))
        self._guard(target).learn()
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
        move: bool,
    ) -> dict[str, Any]:
        """The `run` verb: check one candidate, then time it; `move`: arrays at new places."""
        task = self._moved(self._load(folder)) if move else self._load(folder)
        device = tvm.runtime.device(self._device_name, 0)
        module = tvm.runtime.load_module(library)
        func = module["main"]
        for tensor, arg, fresh in zip(task.tensors, task.args, task.fresh, strict=True):
            if arg.is_output:
                tensor.copyfrom(fresh)
        device.sync()
        guard = self._guard(task.target)
        self._quiet()
        start = time.perf_counter()
        func(*task.tensors)
        device.sync()
        first_us = (time.perf_counter() - start) * 1e6
        for index, expected in task.expected.items():
            wrong = reference.mismatch(task.tensors[index].numpy(), expected, task.relative)
            if wrong is not None:
                message = f"output {task.args[index].name}: {wrong}"
                return {"error": protocol.ErrorClass.WRONG_RESULT.value, "message": message}
        settings = timing.TimingOptions(**options)
        found = guard.measure_stable(
            lambda: timing.latencies(
                module,
                device,
                task.tensors,
                settings,
                cache_bytes=cache_bytes,
                first_us=first_us,
                best_us=best_us,
            ),
            lambda found: timing.could_lead(found, settings, best_us, contention.SLOWED),
        )
        return {"latencies_us": found, "checked": bool(task.expected)}

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

    def _guard(self, target: tvm.target.Target) -> contention.ContentionGuard:
        """One for all candidates, so that it knows how fast the cores can be."""
        if self._calm is None:
            self._calm = contention.ContentionGuard(
                contention.multiply_adds(host(target), self._threads), self._rest
            )
        return self._calm

    def _load(self, folder: str) -> _Prepared:
        if self._task is not None and self._task.folder == folder:
            return self._task
        meta = json.loads(pathlib.Path(folder, "task.json").read_text())
        mod, target = tvm.ir.load_json(meta["payload"])
        args = reference.arguments(mod)
        fresh = reference.inputs(args, meta["seed"], positive=meta["positive"])
        device = tvm.runtime.device(self._device_name, 0)
        expected = {
            index: np.fromfile(
                output_path(folder, index), dtype=reference.np_dtype(arg.dtype)
            ).reshape(arg.shape)
            for index, arg in enumerate(args)
            if arg.is_output and meta["check"]
        }
        self._task = None  # frees the other task's tensors before these are made
        self._places.clear()
        self._task = _Prepared(
            folder=folder,
            args=args,
            fresh=fresh,
            tensors=[tvm.runtime.tensor(array, device) for array in fresh],
            expected=expected,
            relative=reference.tolerance(mod),
            target=target,
        )
        return self._task


def reference_outputs(
    mod: tvm.IRModule,
    host: tvm.target.Target,
    args: tuple[reference.Argument, ...],
    seed: int,
) -> tuple[dict[int, reference.Array], bool]:
    """Expected outputs by argument index, and whether positive inputs were needed."""
    func = tvm.tirx.build(reference.scheduled(mod), host)["main"]
    for positive in (False, True):
        tensors = [
            tvm.runtime.tensor(array) for array in reference.inputs(args, seed, positive=positive)
        ]
        func(*tensors)
        outputs = {i: tensors[i].numpy() for i, arg in enumerate(args) if arg.is_output}
        if finite(outputs, args):
            break
    return outputs, positive


def finite(outputs: dict[int, reference.Array], args: tuple[reference.Argument, ...]) -> bool:
    """Whether the outputs hold neither NaN nor infinity."""
    return all(
        bool(np.isfinite(output.astype(np.float64)).all())
        for i, output in outputs.items()
        if reference.is_float(args[i].dtype)
    )


def host(target: tvm.target.Target) -> tvm.target.Target:
    """The CPU target that goes with a target."""
    if target.kind.name == "llvm":
        return target
    return target.host if target.host is not None else tvm.target.Target("llvm")


def output_path(folder: str, index: int) -> str:
    """Where a task's folder keeps the expected contents of an output."""
    return str(pathlib.Path(folder, f"output-{index}.bin"))
