"""The stages of a pool put together: who submits, what waits, how candidates are settled.

    submit -> building -> dispatch -> device_thread -> future
                 (builders)           (queues)          (a run worker each)

A task goes the same way before its candidates: a builder makes its reference, its primary runs it.

Where builders and run workers are, on this machine or on others, is up to the subclass.
"""

from __future__ import annotations

import abc
import pathlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import tvm

from felix import errors, workloads
from felix.builder import payload as payloads
from felix.builder.cuda import reference
from felix.measure import (
    building,
    device_thread,
    dispatch,
    locks,
    noise_probe,
    readings,
    rights,
    work,
)
from felix.measure import worker as pool_worker
from felix.measure.measurer import Measurer
from felix.runner import protocol
from felix.task import Task

_ErrorClass = protocol.ErrorClass

#: A library stays on disk, to be measured again, up to this multiple of the best latency.
_REUSABLE_RATIO = 1.3
#: Of the product that is the noise probe: some 0.2 ms, of arithmetic and not of the launch.
_PROBE_SHAPE = {"llvm": (64, 64, 64), "cuda": (512, 512, 512)}


class StagedPool(Measurer):
    """A `measurer.Measurer` of one task; `for_task` serves others as well.

    A subclass makes `_builds` and `_stages` around `_references` and `_queues`, starts them, then
    sets `_task`. It names its processes in `_workers` and ends them in `_end`.

    Args:
        target_kind: "llvm" or "cuda".
        folders: where libraries of candidates are; the devices' references where they are local.
        devices: that candidates run on; `_add_device` adds others, whose workers are elsewhere.
    """

    _builds: building.Builders
    _stages: list[device_thread.DeviceThread]
    _task: work.PoolTask

    def __init__(
        self, target_kind: str, folders: rights.Folders, devices: Sequence[work.Device]
    ) -> None:
        #: held exclusively while a candidate is timed on this machine's CPU
        self.timing_lock = locks.ReadWriteLock()
        self._target_kind = target_kind
        self._folders = folders
        self._devices = list(devices)
        self._lock = threading.Lock()
        self._closed = False
        self._submitted = 0
        self._tasks: dict[str, work.PoolTask] = {}
        self._made: list[work.PoolTask] = []
        self._queues = dispatch.Dispatch(len(self._devices))
        self._references = building.References(
            lambda task: self._builds.put(task), self._queues.put
        )

    def submit(
        self, program: payloads.Buildable, thorough: bool = False
    ) -> Future[protocol.Measurement]:
        """Queue one program of the pool's task."""
        return self._submit(program, self._task, thorough)

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
        out = self._queues.faults.keys() | self._queues.away.keys()
        return max(1, len(self._devices) - len(out))

    @property
    def lost(self) -> str | None:
        """Why nothing can be built, or nothing measured, for now; None if it can."""
        if (reason := self._queues.lost) is not None:
            return f"no device can be reached ({reason})"
        reason = self._builds.lost
        return None if reason is None else f"no builder can be reached ({reason})"

    def conditions(self) -> list[readings.Condition]:
        """How each device is."""
        faults = self._queues.away | self._queues.faults
        return [
            readings.Condition(
                self._place(stage.index),
                self._queues.n_waiting(stage.index),
                *stage.history.counts(),
                faults.get(stage.index),
            )
            for stage in list(self._stages)
        ]

    def _place(self, index: int) -> str:
        """The name of a device among all of its tuner."""
        device = self._devices[index]
        return f"{device.kind}:{device.index}"

    @property
    def unconfined(self) -> str | None:
        """Why clients' programs run in a process that is not confined; None if all are confined.

        Known once a candidate has been measured.
        """
        reasons = (stage.runs.unconfined for stage in self._stages)
        return next((reason for reason in reasons if reason is not None), None)

    def interrupt(self) -> None:
        """Cancel what waits, end what runs: its candidates fail. The pool stays usable.

        Workers are replaced at the next candidate. References that were not there by then are
        made when they are needed.
        """
        self._drain()
        self._interrupt()

    def close(self) -> None:
        """Cancel what waits, end all processes; running candidates become errors."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drain()
        self._builds.close()
        self._queues.close()
        self._end()
        self._builds.join()
        for stage in self._stages:
            stage.join()
        self._drain()

    @property
    def is_alive(self) -> bool:
        """Whether what the pool started is there."""
        return not self._closed

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no worker has anything to do."""
        return self._builds.is_empty and self._queues.is_empty and not self._is_working()

    def _workers(self) -> Sequence[pool_worker.Worker]:
        """Processes of this machine that build and run."""
        return ()

    def _is_working(self) -> bool:
        """Whether a worker has something to do."""
        return any(worker.is_called for worker in self._workers())

    @abc.abstractmethod
    def _end(self) -> None:
        """End the workers' processes, or let go of them."""

    def _interrupt(self) -> None:
        """End what workers are doing."""
        for worker in self._workers():
            worker.interrupt()

    def _start(self) -> None:
        """Let the stages begin."""
        self._builds.start()
        for stage in self._stages:
            stage.start()

    def _task_of(self, task: Task) -> work.PoolTask:
        with self._lock:
            known = self._tasks.get(task.key)
            if known is not None and known.on_primary.failure is None:
                return known
            made = self._new_task(task, self._queues.device_of_next_task())
            for state in made.states:
                if state is not made.on_primary:  # run when the device first helps
                    state.failure = work.NOT_COMPUTED
            self._tasks[task.key] = made
            self._references.ask(made)  # it is made while the first candidates are built
            return made

    def _new_task(self, task: Task, primary: int) -> work.PoolTask:
        number, shared = len(self._made), work.Reference()
        states = [
            work.TaskState(device, str(self._folders.of_task(index, number)), shared)
            for index, device in enumerate(self._devices)
        ]
        payload, name = self._reference_payload(task), f"reference-{number}"
        made = work.PoolTask(primary, states, payload, name, task.target)
        self._made.append(made)
        return made

    def _reference_payload(self, task: Task) -> str:
        """What the reference of a task is made of."""
        return payloads.of(task.mod, task.target)

    def _arm_probe(self, watch: noise_probe.NoiseProbe, target: tvm.target.Target) -> None:
        """Let the devices time a noise probe, as soon as it is built."""
        task = workloads.gemm(*_PROBE_SHAPE[self._target_kind], target=target)
        program = task.mod if self._target_kind == "llvm" else reference.scheduled(task.mod)
        with self._lock:
            made = self._new_task(task, 0)
            for state in made.states:
                state.failure = work.NOT_COMPUTED
            self._references.ask(made)
        candidate = work.QueuedProgram(made, payloads.of(program, target), "noise-probe")

        def arm(measured: Future[protocol.Measurement]) -> None:
            if not measured.cancelled() and measured.result().ok:
                watch.arm(made, candidate.binary)

        candidate.future.add_done_callback(arm)
        self._builds.put(candidate)

    def _add_device(self, device: work.Device) -> int:
        """One more device that helps with all tasks; its number."""
        with self._lock:
            index = len(self._devices)
            for task in self._made:
                state = work.TaskState(
                    device, task.on_primary.folder, task.reference, work.NOT_COMPUTED
                )
                task.states.append(state)
            self._devices.append(device)
            self._queues.add()
            return index

    def _submit(
        self, program: payloads.Buildable, task: work.PoolTask, thorough: bool
    ) -> Future[protocol.Measurement]:
        assert task.target is not None
        payload = payloads.of(program, task.target)
        candidate = work.QueuedProgram(task, payload, "", thorough=thorough)
        digest = candidate.digest
        with self._lock:
            if self._closed:
                raise errors.MeasureError("the pool is closed")
            candidate.name = f"candidate-{self._submitted}"
            self._submitted += 1
            candidate.binary = task.libraries.get(digest, "")
            (self._queues if candidate.binary else self._builds).put(candidate)
        return candidate.future

    def _finish(self, candidate: work.QueuedProgram, measurement: protocol.Measurement) -> None:
        """Keep the library of a measured candidate if it is near the best, and settle it."""
        task, latency_us, digest = candidate.task, measurement.latency_us, candidate.digest
        with self._lock:
            best = task.fastest
            if latency_us is not None and best is not None:
                if latency_us <= _REUSABLE_RATIO * best.latency_us:
                    task.libraries.setdefault(digest, candidate.binary)
            kept = {task.libraries.get(digest), best and best.binary}
            is_spare = candidate.binary not in kept
        if is_spare:
            pathlib.Path(candidate.binary).unlink(missing_ok=True)
        self._settle(candidate, measurement)

    def _settle(self, candidate: work.QueuedProgram, measurement: protocol.Measurement) -> None:
        """Give a candidate its measurement; one that failed after `close` failed because of it."""
        if self._closed and not measurement.ok:
            measurement = candidate.failed(
                _ErrorClass.INFRASTRUCTURE, "the pool was closed", measurement.run_s
            )
        candidate.future.set_result(measurement)

    def _drain(self) -> None:
        """Cancel candidates that wait, and forget references that do."""
        to_build, to_run = self._builds.drain(), self._queues.drain()
        tasks = [item for item in to_build if isinstance(item, work.PoolTask)]
        early = self._references.drain(tasks)
        for item in [*to_build, *early, *to_run]:
            if isinstance(item, work.QueuedProgram):
                if not item.future.cancel():
                    interrupted = "the pool was interrupted"
                    self._settle(item, item.failed(_ErrorClass.INFRASTRUCTURE, interrupted))
            elif item not in tasks:
                item.on_primary.failure = "the pool was interrupted before it was made"


class TaskView(Measurer):
    """A `measurer.Measurer` for one more task of a pool; closing it leaves the pool open."""

    def __init__(self, pool: StagedPool, task: work.PoolTask) -> None:
        self._pool = pool
        self._task = task

    def submit(
        self, program: payloads.Buildable, thorough: bool = False
    ) -> Future[protocol.Measurement]:
        """Queue one program of this task."""
        return self._pool._submit(program, self._task, thorough)

    def close(self) -> None:
        """Nothing to end: the workers are the pool's."""
