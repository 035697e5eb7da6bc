"""Measure on this machine: builders, and one worker that runs, in processes of their own.

    submit -> [to build] -> builder threads -> [to run] -> run thread -> future

Each thread owns one worker process (`worker`, a fork of the `fork_server`); `run_stage` has what
the run thread does with its worker. A candidate that crashes its worker costs nothing else: the
worker is replaced by a fresh fork (10 ms) and the rest go on.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from felix import errors
from felix.measure import payload as payloads
from felix.measure import protocol
from felix.measure.pool import (
    candidates,
    device_lock,
    inbox,
    local_device,
    replies,
    rights,
    run_stage,
    rwlock,
    usage,
)
from felix.measure.pool import worker as pool_worker
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
        self._kind = task.target.kind.name
        self._arch = str(task.target.attrs.get("arch", ""))
        self._device = local_device.of(task.target)
        is_cpu = self._device.kind == "cpu"
        exclusive = self.timing_lock if is_cpu else device_lock.for_device(self._device.kind)
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
        self._states: dict[str, candidates.TaskState] = {}
        self._to_build: queue.SimpleQueue[candidates.Candidate | None] = queue.SimpleQueue()
        self._to_run: queue.SimpleQueue[candidates.Candidate | candidates.TaskState | None] = (
            queue.SimpleQueue()
        )
        threads = local_device.num_cores(task.target) if is_cpu else 1
        count = self._options.builders or cpu.available_cores()
        limit = self._options.build_memory_bytes
        running = (rights.cpu_runner if is_cpu else rights.cuda_runner)(self._folders)
        self._builders = [
            self._worker(
                f"builder-{index}", rights.builder(self._folders, index, limit), threads=1, nice=10
            )
            for index in range(count)
        ]
        self._runner = self._worker("runner", running, threads=threads, nice=0)
        pause = is_cpu if self._options.pause_builders is None else self._options.pause_builders
        quiet = run_stage.Quiet(exclusive, self._builders if pause else ())
        self._runs = run_stage.RunWorker(self._runner, quiet, self._options, self._device)
        self._threads = [
            threading.Thread(target=self._build_loop, args=(index,), daemon=True)
            for index in range(count)
        ] + [threading.Thread(target=self._run_loop, daemon=True)]
        self._opened: Future[None] = Future()
        self._fork_server.launch()
        for thread in self._threads:
            thread.start()
        if self._options.confine_gpu is policy.ConfineGpu.ON:
            self._await_opened()
        self._state = self._state_of(task)

    def submit(
        self, program: payloads.Program, thorough: bool = False
    ) -> Future[protocol.Measurement]:
        """Queue one program of the pool's task."""
        return self._submit(program, self._state, thorough)

    def measure(self, programs: Sequence[payloads.Program]) -> list[protocol.Measurement]:
        """Measure all and wait; results in the order of `programs`."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    def for_task(self, task: Task) -> TaskView:
        """A measurer for another task of the same target that shares this pool's workers."""
        if task.target.kind.name != self._kind:
            raise errors.MeasureError(f"this pool measures {self._kind}, not {task.target.kind}")
        return TaskView(self, self._state_of(task))

    def worker_pids(self) -> dict[str, int | None]:
        """Process ids by name: the fork server, the builders, the runner."""
        pids = {worker.name: worker.pid for worker in [*self._builders, self._runner]}
        return {"fork_server": self._fork_server.pid, **pids}

    @property
    def unconfined(self) -> str | None:
        """Why clients' programs run in a process that is not confined; None if it is confined.

        Known once a candidate has been measured.
        """
        return self._runs.unconfined

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no worker has anything to do."""
        workers = [*self._builders, self._runner]
        waits = not (self._to_build.empty() and self._to_run.empty())
        return not waits and not any(worker.is_called for worker in workers)

    def interrupt(self) -> None:
        """Cancel what waits, end what runs: its candidates fail. The pool stays usable.

        Workers are replaced at the next candidate. A task whose reference was not made by then
        gets another one from `for_task`.
        """
        self._drain()
        for worker in [*self._builders, self._runner]:
            worker.interrupt()

    def close(self) -> None:
        """Cancel what waits, end all processes; running candidates become errors."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drain()
        for _ in self._builders:
            self._to_build.put(None)
        self._to_run.put(None)
        self._fork_server.close()
        for thread in self._threads:
            thread.join()
        self._drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _await_opened(self) -> None:
        """Wait for the run worker; an error of `RunWorker.open` closes the pool."""
        try:
            self._opened.result()
        except errors.MeasureError:
            self.close()
            raise

    def _worker(
        self, name: str, may: policy.Policy, *, threads: int, nice: int
    ) -> pool_worker.Worker:
        # Builders see no GPU; the runner loads a kernel when it is loaded, not when it is timed.
        is_runner = name == "runner"
        cuda = {"CUDA_MODULE_LOADING": "EAGER"} if is_runner else {"CUDA_VISIBLE_DEVICES": ""}
        settings = {
            "device": self._device.kind,
            "tasks": str(self._folders.tasks),
            "environment": cuda if self._device.kind == "cuda" else {},
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

    def _state_of(self, task: Task) -> candidates.TaskState:
        with self._lock:
            key = task.key
            if key not in self._states or self._states[key].failure is not None:
                folder = self._folders.tasks / f"task-{self._n_folders}"
                self._n_folders += 1
                payload = payloads.of(task.mod, task.target)
                state = candidates.TaskState(task.target, self._device, str(folder), payload)
                self._states[key] = state
                self._to_run.put(state)  # the reference is made while the first builds go on
            return self._states[key]

    def _submit(
        self, program: payloads.Program, state: candidates.TaskState, thorough: bool
    ) -> Future[protocol.Measurement]:
        payload = payloads.of(program, state.target)
        future: Future[protocol.Measurement] = Future()
        with self._lock:
            if self._closed:
                raise errors.MeasureError("the pool is closed")
            name = f"candidate-{self._submitted}"
            self._submitted += 1
            candidate = candidates.Candidate(
                state=state, payload=payload, name=name, future=future, thorough=thorough
            )
            candidate.binary = state.libraries.get(candidate.digest, "")
            (self._to_run if candidate.binary else self._to_build).put(candidate)
        return future

    def _build_loop(self, index: int) -> None:
        worker, folder = self._builders[index], self._folders.of_builder(index)
        while (candidate := self._to_build.get()) is not None:
            if candidate.future.set_running_or_notify_cancel():
                self._build(worker, folder, candidate)

    def _build(
        self, worker: pool_worker.Worker, folder: pathlib.Path, candidate: candidates.Candidate
    ) -> None:
        request: dict[str, Any] = {
            "verb": "build",
            "payload": candidate.payload,
            "stem": str(folder / candidate.name),
        }
        if self._device.kind == "cuda":
            request["verb"] = "build_cuda"
            request["explicit"] = self._options.explicit_unroll
            request["scalars"] = self._options.scalar_registers
            request["options"] = self._options.nvrtc_options
            request["max_source_bytes"] = self._options.max_source_bytes
        else:
            request["link"] = self._options.link.value
        try:
            reply = self._build_reply(worker, request)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            candidate.build_s = error.cpu_s if isinstance(error, pool_worker.WorkerLost) else 0.0
            kind = run_stage.classify(error, _ErrorClass.BUILD)
            worker.clear()
            self._settle(candidate, candidate.failed(kind, f"building: {error}"))
            return
        candidate.build_s = reply["seconds"]
        if "error" in reply:
            self._settle(
                candidate, candidate.failed(_ErrorClass(reply["error"]), reply["message"])
            )
            return
        candidate.binary = reply["library"]
        self._to_run.put(candidate)

    def _build_reply(self, worker: pool_worker.Worker, request: dict[str, Any]) -> dict[str, Any]:
        """The reply of a builder; its library is where no worker can write."""
        reply = worker.call(request, self._options.build_timeout_s, busy=True)
        try:
            reply = replies.checked(request, reply)
        except inbox.Nonsense as error:
            raise worker.misbehaved(f"it replied with {error}") from None
        if "error" in reply:
            return reply
        library = self._folders.libraries / pathlib.Path(reply["library"]).name
        try:
            os.replace(reply["library"], library)
        except OSError as error:  # the pool is closed
            raise errors.MeasureError(f"the library is gone: {error.strerror}") from error
        return reply | {"library": str(library)}

    def _run_loop(self) -> None:
        try:
            if self._device.kind == "cuda":
                self._runs.open(self._arch)
            self._opened.set_result(None)
        except errors.MeasureError as error:
            self._opened.set_exception(error)
            return
        while (item := self._to_run.get()) is not None:
            if isinstance(item, candidates.TaskState):
                self._runs.prepare(item)
            elif item.future.running() or item.future.set_running_or_notify_cancel():
                measurement = self._runs.run(item)
                self._keep_or_delete(item, measurement.latency_us)
                self._settle(item, measurement)

    def _keep_or_delete(self, candidate: candidates.Candidate, latency_us: float | None) -> None:
        """Keep the library of a candidate near the best."""
        state = candidate.state
        with self._lock:
            if candidate.digest in state.libraries:
                return
            if latency_us is not None and state.best_us is not None:
                if latency_us <= _REUSABLE_RATIO * state.best_us:
                    state.libraries[candidate.digest] = candidate.binary
                    return
        pathlib.Path(candidate.binary).unlink(missing_ok=True)

    def _settle(self, candidate: candidates.Candidate, measurement: protocol.Measurement) -> None:
        """Give a candidate its measurement; one that failed after `close` failed because of it."""
        if self._closed and not measurement.ok:
            measurement = candidate.failed(
                _ErrorClass.INFRASTRUCTURE, "the pool was closed", measurement.run_s
            )
        candidate.future.set_result(measurement)

    def _drain(self) -> None:
        """Cancel candidates that wait for a thread, and forget references that do."""
        for waiting in (self._to_build, self._to_run):
            while True:
                try:
                    candidate = waiting.get_nowait()
                except queue.Empty:
                    break
                if isinstance(candidate, candidates.TaskState):
                    candidate.failure = "the pool was interrupted before it was made"
                elif candidate is not None and not candidate.future.cancel():
                    self._settle(
                        candidate,
                        candidate.failed(_ErrorClass.INFRASTRUCTURE, "the pool was interrupted"),
                    )


class TaskView:
    """A `protocol.Measurer` for one more task of a pool; closing it leaves the pool open."""

    def __init__(self, pool: LocalPool, state: candidates.TaskState) -> None:
        self._pool = pool
        self._state = state

    def submit(
        self, program: payloads.Program, thorough: bool = False
    ) -> Future[protocol.Measurement]:
        """Queue one program of this task."""
        return self._pool._submit(program, self._state, thorough)

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
