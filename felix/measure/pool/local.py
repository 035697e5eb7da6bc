"""Measure on this machine: builders, and a worker that runs on each device, in processes.

    submit -> stages.build_stage -> stages.dispatch -> stages.device_stage -> future
                 (builders)           (queues)          (a run worker each)

Each thread owns one worker process (`worker`, a fork of the `fork_server`); `stages.run_stage` has
what the thread of a device does with its worker. A candidate that crashes its worker costs nothing
else: the worker is replaced by a fresh fork (10 ms) and the rest go on.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self

from felix import errors
from felix.measure import payload as payloads
from felix.measure import protocol
from felix.measure.pool import (
    candidates,
    device_lock,
    local_device,
    rights,
    rwlock,
    usage,
)
from felix.measure.pool import worker as pool_worker
from felix.measure.pool.stages import build_stage, device_stage, dispatch, run_stage
from felix.processes import confine, fork_server, policy
from felix.target import cpu

if TYPE_CHECKING:
    from felix.task import Task

LocalOptions = candidates.LocalOptions
_ErrorClass = protocol.ErrorClass

_FORK_SERVER = "felix.measure.pool.fork_server_main"
#: How often TVM's worker threads look for more work before they sleep, 0.1 to 0.5 us each. Enough
#: for the time between two timed calls; with TVM's 300,000 they keep the cores from builds and
#: search for up to 0.17 s after every candidate, and from resting.
_SPIN_VARIABLE, _SPINS = "TVM_THREAD_POOL_SPIN_COUNT", 5_000
#: A library stays on disk, to be measured again, up to this multiple of the best latency.
_REUSABLE_RATIO = 1.3


class LocalPool:
    """A `protocol.Measurer` for candidates of `task`; `for_task` serves others as well.

    Raises:
        MeasureError: the target needs a device that this machine does not have or give.
        TargetError: the target's code uses instructions that this machine's CPU does not have.
    """

    def __init__(self, task: Task, options: LocalOptions | None = None) -> None:
        self.timing_lock = rwlock.ReadWriteLock()
        self._options = options or LocalOptions()
        self._target_kind = task.target.kind.name
        self._devices = local_device.chosen(task.target, self._options.devices)
        self._is_cpu = self._devices[0].kind == "cpu"
        locks = [self._exclusive(device) for device in self._devices]
        confine.warn_of_missing()
        self._fork_server = fork_server.ForkServer(
            _FORK_SERVER, self._options.start_timeout_s, {_SPIN_VARIABLE: str(_SPINS)}
        )
        self._folders = rights.Folders.make(
            self._fork_server.work_dir, self._options.scratch_bytes
        )
        self._lock = threading.Lock()
        self._closed = False
        self._submitted = 0
        self._n_folders = 0
        self._tasks: dict[str, candidates.PoolTask] = {}
        self._queues = dispatch.Dispatch(len(self._devices))
        self._builds = build_stage.BuildStage(
            self._builders(), self._folders, self._options, self._devices[0].kind,
            built=self._queues.put, settle=self._settle,
        )  # fmt: skip
        threads = local_device.num_cores(task.target) if self._is_cpu else 1
        arch = "" if self._is_cpu else str(task.target.attrs["arch"])
        self._stages = [
            self._stage(index, lock, threads, arch) for index, lock in enumerate(locks)
        ]
        self._fork_server.launch()
        self._builds.start()
        for stage in self._stages:
            stage.start()
        if self._options.confine_gpu is policy.ConfineGpu.ON:
            self._await_opened()
        self._task = self._task_of(task)

    def _exclusive(self, device: candidates.Device) -> run_stage.Exclusive:
        """What is held while a kernel is timed on the device."""
        if self._is_cpu:
            return self.timing_lock
        return device_lock.for_device(device.kind, device.index)

    def _builders(self) -> list[pool_worker.Worker]:
        limit = self._options.build_memory_bytes
        return [
            self._worker(
                f"builder-{index}", rights.builder(self._folders, index, limit),
                self._devices[0], threads=1, nice=10,
            )
            for index in range(self._options.builders or cpu.available_cores())
        ]  # fmt: skip

    def _stage(
        self, index: int, lock: run_stage.Exclusive, threads: int, arch: str
    ) -> device_stage.DeviceStage:
        """The stage of a device, with its run worker."""
        device, options = self._devices[index], self._options
        may = (rights.cpu_runner if self._is_cpu else rights.cuda_runner)(self._folders, index)
        name = "runner" if len(self._devices) == 1 else f"runner-{index}"
        worker = self._worker(name, may, device, threads=threads, nice=0)
        pause = self._is_cpu if options.pause_builders is None else options.pause_builders
        quiet = run_stage.Quiet(lock, self._builds.workers if pause else ())
        runs = run_stage.RunWorker(worker, quiet, options, device)
        return device_stage.DeviceStage(index, runs, self._queues, self._finish, arch)

    def submit(
        self, program: payloads.Program, thorough: bool = False
    ) -> Future[protocol.Measurement]:
        """Queue one program of the pool's task."""
        return self._submit(program, self._task, thorough)

    def measure(self, programs: Sequence[payloads.Program]) -> list[protocol.Measurement]:
        """Measure all and wait; results in the order of `programs`."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    def for_task(self, task: Task) -> TaskView:
        """A measurer for another task of the same target that shares this pool's workers."""
        if task.target.kind.name != self._target_kind:
            raise errors.MeasureError(
                f"this pool measures {self._target_kind}, not {task.target.kind}"
            )
        return TaskView(self, self._task_of(task))

    @property
    def n_devices(self) -> int:
        """Candidates that may be timed at a time, each on a device of its own."""
        return len(self._devices) - len(self._queues.faults)

    def worker_pids(self) -> dict[str, int | None]:
        """Process ids by name: the fork server, the builders, the runners."""
        pids = {worker.name: worker.pid for worker in self._workers()}
        return {"fork_server": self._fork_server.pid, **pids}

    @property
    def unconfined(self) -> str | None:
        """Why clients' programs run in a process that is not confined; None if all are confined.

        Known once a candidate has been measured.
        """
        reasons = (stage.runs.unconfined for stage in self._stages)
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no worker has anything to do."""
        is_empty = self._builds.is_empty and self._queues.is_empty
        return is_empty and not any(worker.is_called for worker in self._workers())

    def interrupt(self) -> None:
        """Cancel what waits, end what runs: its candidates fail. The pool stays usable.

        Workers are replaced at the next candidate. A task whose reference was not made by then
        gets another one from `for_task`.
        """
        self._drain()
        for worker in self._workers():
            worker.interrupt()

    def close(self) -> None:
        """Cancel what waits, end all processes; running candidates become errors."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drain()
        self._builds.close()
        self._queues.close()
        self._fork_server.close()
        self._builds.join()
        for stage in self._stages:
            stage.join()
        self._drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _await_opened(self) -> None:
        """Wait for the run workers; an error of `RunWorker.open` closes the pool."""
        try:
            for stage in self._stages:
                stage.opened.result()
        except errors.MeasureError:
            self.close()
            raise

    def _workers(self) -> list[pool_worker.Worker]:
        return [*self._builds.workers, *(stage.runs.worker for stage in self._stages)]

    def _worker(
        self, name: str, may: policy.Policy, device: candidates.Device, *, threads: int, nice: int
    ) -> pool_worker.Worker:
        """A worker process, which starts with its first request."""
        # Builders see no GPU; a runner loads a kernel when it is loaded, not when it is timed.
        environment = {}
        if device.kind == "cuda" and name.startswith("builder"):
            environment = {"CUDA_VISIBLE_DEVICES": ""}
        elif device.kind == "cuda":
            visible = {"CUDA_VISIBLE_DEVICES": device.visible} if device.visible else {}
            environment = {"CUDA_MODULE_LOADING": "EAGER", **visible}
        settings = {
            "device": device.kind,
            "tasks": may.folder,
            "environment": environment,
            "policy": dataclasses.asdict(may),
            "threads": threads,
            "nice": nice,
        }
        log = self._fork_server.work_dir / f"{name}.log"
        allowance = usage.Allowance(
            may.scratch,
            log,
            self._folders.limit_bytes,
            rights.BUILD_PROCESSES if may.programs else 1,
        )
        return pool_worker.Worker(self._fork_server, name, settings, allowance)

    def _task_of(self, task: Task) -> candidates.PoolTask:
        with self._lock:
            known = self._tasks.get(task.key)
            if known is not None and known.at_home.failure is None:
                return known
            payload = payloads.of(task.mod, task.target)
            number, self._n_folders = self._n_folders, self._n_folders + 1
            folders = [self._folders.of_task(index, number) for index in range(len(self._devices))]
            states = [
                candidates.TaskState(task.target, device, str(folder), payload)
                for device, folder in zip(self._devices, folders, strict=True)
            ]
            made = candidates.PoolTask(self._queues.home_of_next_task(), tuple(states))
            for state in states:
                if state is not made.at_home:  # made when the device first helps
                    state.failure = "it is not computed yet"
            self._tasks[task.key] = made
            self._queues.put(made)  # the reference is made while the first builds go on
            return made

    def _submit(
        self, program: payloads.Program, task: candidates.PoolTask, thorough: bool
    ) -> Future[protocol.Measurement]:
        payload = payloads.of(program, task.at_home.target)
        future: Future[protocol.Measurement] = Future()
        with self._lock:
            if self._closed:
                raise errors.MeasureError("the pool is closed")
            name = f"candidate-{self._submitted}"
            self._submitted += 1
            candidate = candidates.Candidate(
                task=task, payload=payload, name=name, future=future, thorough=thorough
            )
            candidate.binary = task.libraries.get(candidate.digest, "")
            (self._queues if candidate.binary else self._builds).put(candidate)
        return future

    def _finish(self, candidate: candidates.Candidate, measurement: protocol.Measurement) -> None:
        """Keep the library of a measured candidate if it is near the best, and settle it."""
        task, latency_us = candidate.task, measurement.latency_us
        with self._lock:
            if latency_us is not None:
                task.best_us = min(latency_us, task.best_us or latency_us)
                if latency_us <= _REUSABLE_RATIO * task.best_us:
                    task.libraries.setdefault(candidate.digest, candidate.binary)
            is_spare = candidate.binary not in task.libraries.values()
        if is_spare:
            pathlib.Path(candidate.binary).unlink(missing_ok=True)
        self._settle(candidate, measurement)

    def _settle(self, candidate: candidates.Candidate, measurement: protocol.Measurement) -> None:
        """Give a candidate its measurement; one that failed after `close` failed because of it."""
        if self._closed and not measurement.ok:
            measurement = candidate.failed(
                _ErrorClass.INFRASTRUCTURE, "the pool was closed", measurement.run_s
            )
        candidate.future.set_result(measurement)

    def _drain(self) -> None:
        """Cancel candidates that wait for a thread, and forget references that do."""
        for item in [*self._builds.drain(), *self._queues.drain()]:
            if isinstance(item, candidates.PoolTask):
                item.at_home.failure = "the pool was interrupted before it was made"
            elif not item.future.cancel():
                interrupted = "the pool was interrupted"
                self._settle(item, item.failed(_ErrorClass.INFRASTRUCTURE, interrupted))


class TaskView:
    """A `protocol.Measurer` for one more task of a pool; closing it leaves the pool open."""

    def __init__(self, pool: LocalPool, task: candidates.PoolTask) -> None:
        self._pool = pool
        self._task = task

    def submit(
        self, program: payloads.Program, thorough: bool = False
    ) -> Future[protocol.Measurement]:
        """Queue one program of this task."""
        return self._pool._submit(program, self._task, thorough)

    def measure(self, programs: Sequence[payloads.Program]) -> list[protocol.Measurement]:
        """Measure all and wait; results in the order of `programs`."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    def close(self) -> None:
        """Nothing to end: the workers are the pool's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


if TYPE_CHECKING:

    def _conforms(pool: LocalPool, view: TaskView) -> tuple[protocol.Measurer, protocol.Measurer]:
        return pool, view
