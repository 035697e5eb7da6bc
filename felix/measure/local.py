"""Measure on this machine: builders, and a worker that runs on each device, in processes.

Each thread of a stage owns one worker process (`worker`, a fork of a `fork_server`);
`running` has what the thread of a device does with its worker. A candidate that crashes
its worker costs nothing else: the worker is replaced by a fresh fork (10 ms) and the rest go on.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Literal

import tvm

from felix import errors, target
from felix.measure import local_workers, noise_probe, work
from felix.processes import policy
from felix.runner.cuda import devices, nvrtc
from felix.target import cpu
from felix.task import Task

# The devices of this machine that candidates of a target run on.


def of(built_for: tvm.target.Target) -> work.Device:
    """The device a target runs on.

    Raises:
        MeasureError: this machine does not have it, or cannot build for it.
        TargetError: the target's code uses instructions that this machine's CPU does not have.
    """
    kind = built_for.kind.name
    if kind not in ("llvm", "cuda"):
        raise errors.MeasureError(f"cannot measure target kind {kind!r} on this machine")
    target.refuse_foreign(built_for)
    hardware = target.hardware(built_for)
    if kind == "cuda":
        if not tvm.runtime.device("cuda", 0).exist:
            raise errors.MeasureError(
                "no CUDA device here: tune for 'llvm' or on a machine with a GPU"
            )
        nvrtc.check(str(built_for.attrs["arch"]), devices.version())
        hardware = _gpu_here(built_for, hardware)
    cache_bytes = hardware.l3_bytes or hardware.l2_bytes
    return work.Device("cpu" if kind == "llvm" else kind, hardware.name, cache_bytes)


def chosen(
    built_for: tvm.target.Target, indices: tuple[int, ...] | Literal["all"]
) -> tuple[work.Device, ...]:
    """The devices that a pool measures on: one, or several GPUs of the model of the first.

    Args:
        built_for: the target.
        indices: of GPUs as this process counts them, or "all" of them; a CPU is one device.

    Raises:
        MeasureError: see `of`; or there is no such GPU, or the GPUs differ.
        TargetError: see `of`.
    """
    first = of(built_for)
    if first.kind != "cuda" or indices == (0,):
        return (first,)
    count = devices.count()
    numbers = tuple(range(count)) if indices == "all" else indices
    if not numbers or len(set(numbers)) < len(numbers):
        raise errors.MeasureError(f"name one GPU or several different ones, not {numbers}")
    beyond = [number for number in numbers if not 0 <= number < count]
    if beyond:
        raise errors.MeasureError(f"there is no GPU {beyond[0]} here: they are 0 to {count - 1}")
    models = {number: devices.name(number) for number in (0, *numbers)}
    other = next((number for number in numbers if models[number] != models[0]), None)
    if other is not None:
        raise errors.MeasureError(
            f"GPU {other} is a {models[other]} and GPU 0 a {models[0]}: latencies of two models "
            "do not compare; hide one by CUDA_VISIBLE_DEVICES"
        )
    return tuple(
        dataclasses.replace(first, index=number, visible=devices.visible_name(number))
        for number in numbers
    )


def _gpu_here(built_for: tvm.target.Target, required: target.Hardware) -> target.Hardware:
    """This machine's GPU, under whose name latencies are recorded.

    Raises:
        MeasureError: the target names another model.
    """
    here = target.hardware("cuda")
    names_model = "model" in built_for.attrs or "feature.name" in built_for.attrs
    if names_model and required.name != here.name:
        raise errors.MeasureError(
            f"the target is for {required.name}, the GPU here is {here.name}: "
            "tune for 'cuda', which is the GPU that is here, or where the target's is"
        )
    return here


def num_cores(built_for: tvm.target.Target) -> int:
    """How many cores a program for a CPU uses."""
    return int(built_for.attrs.get("num-cores", 0)) or cpu.available_cores()


LocalOptions = work.LocalOptions


class LocalPool(local_workers.PoolOfWorkers):
    """A `measurer.Measurer` for candidates of `task`; `for_task` serves others as well.

    Args:
        task: the task.
        options: of the pool.
        processes: of these options, started before; they become the pool's.

    Raises:
        MeasureError: the target needs a device that this machine does not have or give.
        TargetError: the target's code uses instructions that this machine's CPU does not have.
    """

    def __init__(
        self,
        task: Task,
        options: LocalOptions | None = None,
        processes: local_workers.LocalWorkers | None = None,
    ) -> None:
        options = options or LocalOptions()
        devices = chosen(task.target, options.devices)
        super().__init__(task.target.kind.name, options, devices, processes)
        is_cpu = devices[0].kind == "cpu"
        threads = num_cores(task.target) if is_cpu else 1
        arch = "" if is_cpu else str(task.target.attrs["arch"])
        runs = [
            self._processes.runner(
                "runner" if len(devices) == 1 else f"runner-{index}",
                index,
                device,
                threads,
                self.timing_lock,
                self._builders,
            )
            for index, device in enumerate(devices)
        ]
        watch = noise_probe.NoiseProbe(devices[0].kind) if options.noise_probe else None
        self._begin(runs, [each.worker for each in runs], arch, watch)
        if options.confine_gpu is policy.ConfineGpu.ON:
            self._await_opened()
        self._task = self._task_of(task)
        if watch is not None:
            self._arm_probe(watch, task.target)

    def worker_pids(self) -> dict[str, int | None]:
        """Process ids by name: the fork server that has the builders, these, the runners."""
        pids = {worker.name: worker.pid for worker in self._workers()}
        return {"fork_server": self._processes.fork_server.pid, **pids}

    @property
    def is_alive(self) -> bool:
        """Whether the processes that fork its workers are there."""
        pids = [server.pid for server in self._processes.fork_servers]
        return super().is_alive and all(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)

    def _await_opened(self) -> None:
        """Wait for the run workers; an error of `LocalRunner.open` closes the pool."""
        try:
            for stage in self._stages:
                stage.opened.result()
        except errors.MeasureError:
            self.close()
            raise
