"""Measure on this machine: builders, and a worker that runs on each device, in processes.

Each thread of a stage owns one worker process (`worker`, a fork of a `fork_server`);
`stages.run_stage` has what the thread of a device does with its worker. A candidate that crashes
its worker costs nothing else: the worker is replaced by a fresh fork (10 ms) and the rest go on.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from felix import errors
from felix.measure.pool import candidates, local_device, local_workers, staged
from felix.measure.pool import worker as pool_worker
from felix.measure.pool.stages import build_stage, canary, device_stage
from felix.processes import policy

if TYPE_CHECKING:
    from felix.task import Task

LocalOptions = candidates.LocalOptions


class LocalPool(staged.StagedPool):
    """A `protocol.Measurer` for candidates of `task`; `for_task` serves others as well.

    Raises:
        MeasureError: the target needs a device that this machine does not have or give.
        TargetError: the target's code uses instructions that this machine's CPU does not have.
    """

    def __init__(self, task: Task, options: LocalOptions | None = None) -> None:
        options = options or LocalOptions()
        devices = local_device.chosen(task.target, options.devices)
        self._processes = local_workers.LocalWorkers(options)
        super().__init__(task.target.kind.name, self._processes.folders, devices)
        is_cpu = devices[0].kind == "cpu"
        self._builders = self._processes.builders(devices[0])
        self._builds = build_stage.BuildStage(
            self._builders, built=self._references.built, settle=self._settle
        )
        threads = local_device.num_cores(task.target) if is_cpu else 1
        arch = "" if is_cpu else str(task.target.attrs["arch"])
        self._runs = [
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
        watch = canary.Canary(devices[0].kind) if options.canary else None
        self._stages = [
            device_stage.DeviceStage(index, runs, self._queues, self._finish, arch, watch)
            for index, runs in enumerate(self._runs)
        ]
        self._processes.launch()
        self._start()
        if options.confine_gpu is policy.ConfineGpu.ON:
            self._await_opened()
        self._task = self._task_of(task)
        if watch is not None:
            self._arm_canary(watch, task.target)

    def worker_pids(self) -> dict[str, int | None]:
        """Process ids by name: the fork server that has the builders, these, the runners."""
        pids = {worker.name: worker.pid for worker in self._workers()}
        return {"fork_server": self._processes.fork_server.pid, **pids}

    @property
    def is_alive(self) -> bool:
        """Whether the processes that fork its workers are there."""
        pids = [server.pid for server in self._processes.fork_servers]
        return super().is_alive and all(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no worker has anything to do."""
        is_empty = self._builds.is_empty and self._queues.is_empty
        return is_empty and not any(worker.is_called for worker in self._workers())

    def _end(self) -> None:
        self._processes.close()

    def _interrupt(self) -> None:
        for worker in self._workers():
            worker.interrupt()

    def _await_opened(self) -> None:
        """Wait for the run workers; an error of `RunWorker.open` closes the pool."""
        try:
            for stage in self._stages:
                stage.opened.result()
        except errors.MeasureError:
            self.close()
            raise

    def _workers(self) -> list[pool_worker.Worker]:
        built_by = [builder.worker for builder in self._builders]
        return [*built_by, *(runs.worker for runs in self._runs)]
