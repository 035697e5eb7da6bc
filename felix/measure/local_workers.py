"""The worker processes of this machine: builders, a run worker for each device.

Two fork servers have them. One loads TVM, for builders and what runs on CPUs; the other one does
not, for what runs on GPUs. Each starts if there is something for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from felix.measure import (
    building,
    device_thread,
    locks,
    noise_probe,
    rights,
    running,
    staged,
    work,
)
from felix.measure import worker as pool_worker
from felix.processes import confine, fork_server, policy
from felix.target import cpu

_WITH_TVM = "felix.measure.fork_server_main"
_FOR_GPUS = "felix.measure.gpu_fork_server_main"
#: How long a fork server may take to be ready.
_START_S = 60.0


class LocalWorkers:
    """Makes workers, which start with their first request; `close` ends them all.

    Args:
        options: of the pool.
        is_for_gpus: whether there are run workers of GPUs only.
    """

    def __init__(self, options: work.LocalOptions, is_for_gpus: bool = False) -> None:
        self._options = options
        confine.warn_of_missing()
        self._servers: dict[str, fork_server.ForkServer] = {}
        #: in whose folder all workers have theirs
        self.fork_server = self._server(_FOR_GPUS if is_for_gpus else _WITH_TVM)
        self.folders = rights.Folders.make(self.fork_server.work_dir, options.scratch_bytes)

    @property
    def fork_servers(self) -> list[fork_server.ForkServer]:
        """Those that there are."""
        return list(self._servers.values())

    def launch(self) -> None:
        """Start the fork servers without waiting for them."""
        for server in self.fork_servers:
            server.launch()

    def await_loaded(self) -> None:
        """Wait until they have loaded what they fork workers with."""
        for server in self.fork_servers:
            server.await_ready()

    def close(self) -> None:
        """End all processes; the one with the folders last."""
        for server in reversed(self.fork_servers):
            server.close()

    def builders(self, device: work.Device) -> list[building.LocalBuilder]:
        """The builders, for candidates of a device."""
        limit = self._options.build_memory_bytes
        return [
            building.LocalBuilder(
                self._worker(
                    f"builder-{index}",
                    rights.builder(self.folders, index, limit),
                    device,
                    role="builder",
                    threads=1,
                    nice=10,
                ),
                self.folders.of_builder(index),
                self.folders,
                self._options,
                device.kind,
            )
            for index in range(self._options.builders or cpu.available_cores())
        ]

    def runner(
        self,
        name: str,
        index: int,
        device: work.Device,
        threads: int,
        timing_lock: locks.ReadWriteLock,
        builders: list[building.LocalBuilder],
    ) -> running.LocalRunner:
        """The run worker of a device.

        Args:
            name: of the process.
            index: of the device in the pool.
            device: itself.
            threads: of TVM.
            timing_lock: held while a CPU times.
            builders: to be paused meanwhile.
        """
        is_cpu, options = device.kind == "cpu", self._options
        may = (rights.cpu_runner if is_cpu else rights.cuda_runner)(self.folders, index)
        worker = self._worker(name, may, device, role=device.kind, threads=threads, nice=0)
        lock = timing_lock if is_cpu else locks.for_gpu(device.index)
        paused = [builder.worker for builder in builders] if is_cpu else ()
        return running.LocalRunner(worker, running.Quiet(lock, paused), options, device)

    def board_client(self, name: str, index: int, device: work.Device) -> pool_worker.Worker:
        """The process that talks to a board; it is not confined, as it needs the network."""
        may = rights.cpu_runner(self.folders, index)
        worker = self._worker(name, may, device, role="board", threads=1, nice=0)
        worker.is_confined = False
        return worker

    def _server(self, module: str) -> fork_server.ForkServer:
        """The fork server that runs a module."""
        if module not in self._servers:
            self._servers[module] = fork_server.ForkServer(module, _START_S)
        return self._servers[module]

    def _worker(
        self,
        name: str,
        may: policy.Policy,
        device: work.Device,
        *,
        role: str,
        threads: int,
        nice: int,
    ) -> pool_worker.Worker:
        """A worker process, which starts with its first request.

        Args:
            name: of the process.
            may: its rights.
            device: that it runs programs on, or builds them for.
            role: what it does: "builder", "board", or "cpu" or "cuda" where it runs programs.
            threads: of TVM.
            nice: of the process.
        """
        # Builders see no GPU; a runner loads a kernel when it is loaded, not when it is timed.
        environment = {}
        if role == "cuda":
            visible = {"CUDA_VISIBLE_DEVICES": device.visible} if device.visible else {}
            environment = {"CUDA_MODULE_LOADING": "EAGER", **visible}
        elif device.kind == "cuda":
            environment = {"CUDA_VISIBLE_DEVICES": ""}
        log = self.fork_server.work_dir / f"{name}.log"
        settings = {
            "role": role,
            "log": str(log),
            "tasks": may.folder,
            "environment": environment,
            "policy": dataclasses.asdict(may),
            "threads": threads,
            "nice": nice,
        }
        allowance = rights.Allowance(
            may.scratch,
            log,
            self.folders.limit_bytes,
            rights.BUILD_PROCESSES if may.programs else 1,
        )
        server = self._server(_FOR_GPUS if role == "cuda" else _WITH_TVM)
        return pool_worker.Worker(server, name, settings, allowance)


class PoolOfWorkers(staged.StagedPool):
    """A pool that builds here; a subclass makes what runs candidates and calls `_begin`.

    Args:
        target_kind: of what it builds.
        options: of the pool.
        devices: that candidates run on.
        processes: of these options, which become the pool's; it makes its own if left out.
    """

    def __init__(
        self,
        target_kind: str,
        options: work.LocalOptions,
        devices: Sequence[work.Device],
        processes: LocalWorkers | None = None,
    ) -> None:
        self._processes = processes or LocalWorkers(options)
        super().__init__(target_kind, self._processes.folders, devices)
        self._builders = self._processes.builders(devices[0])
        self._builds = building.Builders(
            self._builders, built=self._references.built, settle=self._settle
        )
        self._runners: list[pool_worker.Worker] = []

    def _begin(
        self,
        runs: Sequence[running.Runner],
        runners: list[pool_worker.Worker],
        arch: str = "",
        watch: noise_probe.NoiseProbe | None = None,
    ) -> None:
        """Start the stages of the devices; `runners` are the processes behind `runs`."""
        self._runners = runners
        self._stages = [
            device_thread.DeviceThread(index, each, self._queues, self._finish, arch, watch)
            for index, each in enumerate(runs)
        ]
        self._processes.launch()
        self._start()

    def _workers(self) -> list[pool_worker.Worker]:
        return [*(builder.worker for builder in self._builders), *self._runners]

    def _end(self) -> None:
        self._processes.close()
