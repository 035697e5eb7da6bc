"""Measure on this machine: builders, and one worker that runs, in processes of their own.

    submit -> [to build] -> builder threads -> [to run] -> run thread -> future

Each thread owns one worker process (see `process`, `host`). What a candidate does to its
worker is its own loss: the worker is replaced by a fresh fork (10 ms) and the rest go on.
Reads scheduled modules of a task; feeds `protocol.Measurement`.

Builds go on while candidates are loaded and references computed, but not while a kernel is
timed on a CPU target: builders are stopped (SIGSTOP) for those milliseconds and then go on.
With two busy processes beside it, a two-thread 512^3 GEMM took 2.2 to 2.7 times as long (at
`nice` 19 up to 2.2), and with the same two stopped 0.9 to 1.1 times as long. Threads of the
caller that compute should hold `LocalPool.gate` in shared mode; timing waits for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pathlib
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import tvm

from felix import cpus, errors, target
from felix.measure import (
    building,
    cuda_driver,
    device_lock,
    gate,
    nvrtc,
    process,
    protocol,
    timing,
)

if TYPE_CHECKING:
    from types import TracebackType

    from felix.task import Task

_ErrorClass = protocol.ErrorClass

#: A library is kept, for being measured again, up to this multiple of the best latency.
_KEPT_RATIO = 1.3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """How a `LocalPool` works; None means: chosen for the target."""

    #: Build workers; None: one a core.
    builders: int | None = None
    #: CPU seconds of one build. The best kernels of a GPU compile in 0.1 to 2.5 s, and of 160
    #: random programs for a CPU the slowest took 2.3 s (`benchmarks/build_time.py`).
    build_timeout_s: float = 6.0
    #: For checking and timing one candidate together.
    run_timeout_s: float = 10.0
    reference_timeout_s: float = 120.0
    start_timeout_s: float = 60.0
    #: Address space of one builder; a build that needs more is a build error. None: no limit.
    build_memory_bytes: int | None = 8 << 30
    link: building.Link = building.Link.AUTO
    #: Stop builders while timing; None: on CPU targets.
    pause_builders: bool | None = None
    #: Compare outputs with the unscheduled program before timing.
    check: bool = True
    #: Seed of the inputs.
    seed: int = 0
    #: None: `timing.TimingOptions()` on a CPU, `timing.GPU` on a GPU.
    timing: timing.TimingOptions | None = None
    #: CUDA: let TVM write unrolled loops out, instead of a pragma for the compiler.
    explicit_unroll: bool = True
    #: CUDA: variables for the elements of arrays in registers (`cuda_source.scalars`).
    scalar_registers: bool = True
    #: CUDA: what NVRTC is told, beside the architecture.
    nvrtc_options: tuple[str, ...] = nvrtc.FAST
    #: CUDA: a candidate with more source is a build error: the longest one built in 6 s had 774 kB
    #: (docs/measuring-cuda.md).
    max_source_bytes: int = 800_000


@dataclasses.dataclass(slots=True)
class _TaskState:
    """What the pool keeps of one task; used by the run thread only, but for the first four."""

    target: tvm.target.Target
    folder: str
    payload: str
    #: libraries of fast candidates by the digest of their payload: one submitted again is not
    #: built again
    libraries: dict[str, str] = dataclasses.field(default_factory=dict)
    failure: str | None = None
    best_us: float | None = None


@dataclasses.dataclass(slots=True)
class _Job:
    """A candidate on its way through the pool."""

    state: _TaskState
    payload: str
    stem: str
    future: Future[protocol.Measurement]
    thorough: bool = False
    binary: str = ""
    build_s: float = 0.0

    @property
    def digest(self) -> str:
        """Identity of what is built."""
        return hashlib.sha256(self.payload.encode()).hexdigest()


class LocalPool:
    """A `protocol.Measurer` for candidates of `task`; `for_task` serves others as well.

    Raises:
        MeasureError: the target needs a device that this machine does not have.
    """

    def __init__(self, task: Task, options: LocalOptions | None = None) -> None:
        self.gate = gate.Gate()
        self._options = options or LocalOptions()
        self._kind = task.target.kind.name
        self._device = _device(task.target)
        hardware = target.hardware(task.target)
        self._device_name = hardware.name
        self._cache_bytes = hardware.l3_bytes or hardware.l2_bytes
        default = timing.TimingOptions() if self._device == "cpu" else timing.GPU
        self._timing = self._options.timing or default
        self._lock_of_device = device_lock.for_device(self._device)
        self._host = process.Host(self._options.start_timeout_s)
        self._lock = threading.Lock()
        self._closed = False
        self._submitted = 0
        self._states: dict[str, _TaskState] = {}
        self._to_build: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._to_run: queue.SimpleQueue[_Job | _TaskState | None] = queue.SimpleQueue()
        threads = _num_cores(task.target) if self._device == "cpu" else 1
        count = self._options.builders or cpus.available_cores()
        limit = self._options.build_memory_bytes
        self._builders = [
            self._worker(f"builder-{index}", threads=1, nice=10, memory_bytes=limit)
            for index in range(count)
        ]
        self._runner = self._worker("runner", threads=threads, nice=0, memory_bytes=None)
        self._threads = [
            threading.Thread(target=self._build_loop, args=(worker,), daemon=True)
            for worker in self._builders
        ] + [threading.Thread(target=self._run_loop, daemon=True)]
        self._host.launch()
        for thread in self._threads:
            thread.start()
        self._state = self._state_of(task)

    def submit(self, mod: tvm.IRModule, thorough: bool = False) -> Future[protocol.Measurement]:
        """Queue one scheduled module of the pool's task."""
        return self._submit(mod, self._state, thorough)

    def measure(self, mods: Sequence[tvm.IRModule]) -> list[protocol.Measurement]:
        """Measure all and wait; results in the order of `mods`."""
        return [future.result() for future in [self.submit(mod) for mod in mods]]

    def for_task(self, task: Task) -> TaskView:
        """A measurer for another task of the same target that shares this pool's workers."""
        if task.target.kind.name != self._kind:
            raise errors.MeasureError(f"this pool measures {self._kind}, not {task.target.kind}")
        return TaskView(self, self._state_of(task))

    def worker_pids(self) -> dict[str, int | None]:
        """Process ids by name: the host, the builders, the runner."""
        pids = {worker.name: worker.pid for worker in [*self._builders, self._runner]}
        return {"host": self._host.pid, **pids}

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
        self._host.close()
        for thread in self._threads:
            thread.join()
        self._drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _worker(self, name: str, **limits: int | None) -> process.Worker:
        # Builders see no GPU; the runner loads a kernel when it is loaded, not when it is timed.
        is_runner = name == "runner"
        cuda = {"CUDA_MODULE_LOADING": "EAGER"} if is_runner else {"CUDA_VISIBLE_DEVICES": ""}
        settings = {
            "device": self._device,
            "work_dir": str(self._host.work_dir),
            "environment": cuda if self._device == "cuda" else {},
        }
        return process.Worker(self._host, name, {**settings, **limits})

    def _state_of(self, task: Task) -> _TaskState:
        with self._lock:
            key = task.key
            if key not in self._states:
                folder = self._host.work_dir / f"task-{len(self._states)}"
                folder.mkdir()
                payload = building.payload(task.mod, task.target)
                state = _TaskState(target=task.target, folder=str(folder), payload=payload)
                self._states[key] = state
                self._to_run.put(state)  # the reference is made while the first builds go on
            return self._states[key]

    def _submit(
        self, mod: tvm.IRModule, state: _TaskState, thorough: bool
    ) -> Future[protocol.Measurement]:
        payload = building.payload(mod, state.target)
        future: Future[protocol.Measurement] = Future()
        with self._lock:
            if self._closed:
                raise errors.MeasureError("the pool is closed")
            stem = str(pathlib.Path(state.folder, f"candidate-{self._submitted}"))
            self._submitted += 1
            job = _Job(state=state, payload=payload, stem=stem, future=future, thorough=thorough)
            job.binary = state.libraries.get(job.digest, "")
            (self._to_run if job.binary else self._to_build).put(job)
        return future

    def _build_loop(self, worker: process.Worker) -> None:
        while (job := self._to_build.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                self._build(worker, job)

    def _build(self, worker: process.Worker, job: _Job) -> None:
        request: dict[str, Any] = {"verb": "build", "payload": job.payload, "stem": job.stem}
        if self._device == "cuda":
            request["verb"] = "build_cuda"
            request["explicit"] = self._options.explicit_unroll
            request["scalars"] = self._options.scalar_registers
            request["options"] = self._options.nvrtc_options
            request["max_source_bytes"] = self._options.max_source_bytes
        else:
            request["link"] = self._options.link.value
        start = time.monotonic()
        try:
            reply = worker.call(request, self._options.build_timeout_s, busy=True)
        except (process.WorkerDied, process.WorkerTimeout, errors.MeasureError) as error:
            job.build_s = time.monotonic() - start
            self._fail(job, _classify(error, _ErrorClass.BUILD), f"building: {error}")
            return
        job.build_s = reply["seconds"]
        if "error" in reply:
            self._fail(job, _ErrorClass(reply["error"]), reply["message"])
            return
        job.binary = reply["library"]
        self._to_run.put(job)

    def _run_loop(self) -> None:
        while (item := self._to_run.get()) is not None:
            if isinstance(item, _TaskState):
                self._prepare(item)
            elif item.future.running() or item.future.set_running_or_notify_cancel():
                measurement = self._run(item)
                self._keep_or_delete(item, measurement.latency_us)
                item.future.set_result(measurement)

    def _keep_or_delete(self, job: _Job, latency_us: float | None) -> None:
        """Keep the library of a candidate near the best."""
        state = job.state
        with self._lock:
            if job.digest in state.libraries:
                return
            if latency_us is not None and state.best_us is not None:
                if latency_us <= _KEPT_RATIO * state.best_us:
                    state.libraries[job.digest] = job.binary
                    return
        pathlib.Path(job.binary).unlink(missing_ok=True)

    def _prepare(self, state: _TaskState) -> None:
        """Compute a task's reference in the run worker; a failure is kept for its candidates."""
        request = {
            "verb": "prepare",
            "folder": state.folder,
            "payload": state.payload,
            "seed": self._options.seed,
            "check": self._options.check,
        }
        try:
            with self._quiet() as begin:
                reply = self._runner.call(request, self._options.reference_timeout_s, begin)
            state.failure = reply.get("message")
        except (process.WorkerDied, process.WorkerTimeout, errors.MeasureError) as error:
            state.failure = str(error)

    def _run(self, job: _Job) -> protocol.Measurement:
        state = job.state
        if state.failure is not None:
            message = f"the unscheduled program gave no reference: {state.failure}"
            return self._failure(job, _ErrorClass.INFRASTRUCTURE, message)
        timing_options = self._timing.burst() if job.thorough else self._timing
        request = {
            "verb": "run",
            "folder": state.folder,
            "library": job.binary,
            "options": dataclasses.asdict(timing_options),
            "cache_bytes": self._cache_bytes,
            "best_us": state.best_us,
        }
        if self._device == "cpu":
            request["move"] = job.thorough
        start = time.monotonic()
        try:
            with self._quiet() as begin:
                reply = self._runner.call(request, self._options.run_timeout_s, begin)
        except (process.WorkerDied, process.WorkerTimeout, errors.MeasureError) as error:
            run_s = time.monotonic() - start
            kind = _classify(error, _ErrorClass.LAUNCH)
            return self._failure(job, kind, f"running: {error}", run_s)
        if "error" in reply:
            if not reply.get("reusable", False):
                self._runner.kill()  # it may have written where it should not
            kind = _ErrorClass(reply["error"])
            return self._failure(job, kind, reply["message"], reply["seconds"])
        result = protocol.Measurement.timed(
            reply["latencies_us"],
            build_s=job.build_s,
            run_s=reply["seconds"],
            checked=reply["checked"],
            device=self._device_name,
        )
        assert result.latency_us is not None
        state.best_us = min(result.latency_us, state.best_us or result.latency_us)
        return result

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[Any]:
        """Gives a function that makes everything else stand still until the block ends."""
        begun = False
        pause = self._options.pause_builders
        pause = self._device == "cpu" if pause is None else pause

        exclusive = self.gate if self._device == "cpu" else self._lock_of_device

        def begin() -> None:
            nonlocal begun
            if not begun:
                exclusive.acquire()
            begun = True
            for builder in self._builders if pause else ():
                builder.pause()

        try:
            yield begin
        finally:
            for builder in self._builders if pause else ():
                builder.resume()
            if begun:
                exclusive.release()

    def _fail(self, job: _Job, kind: _ErrorClass, message: str) -> None:
        job.future.set_result(self._failure(job, kind, message))

    def _failure(
        self, job: _Job, kind: _ErrorClass, message: str, run_s: float = 0.0
    ) -> protocol.Measurement:
        if self._closed:
            kind, message = _ErrorClass.INFRASTRUCTURE, "the pool was closed"
        return protocol.Measurement(
            error=kind,
            message=message,
            build_s=job.build_s,
            run_s=run_s,
            device=self._device_name,
        )

    def _drain(self) -> None:
        """Cancel jobs that no thread will take any more."""
        for jobs in (self._to_build, self._to_run):
            while True:
                try:
                    job = jobs.get_nowait()
                except queue.Empty:
                    break
                if isinstance(job, _Job) and not job.future.cancel():
                    self._fail(job, _ErrorClass.INFRASTRUCTURE, "the pool was closed")


class TaskView:
    """A `protocol.Measurer` for one more task of a pool; closing it leaves the pool open."""

    def __init__(self, pool: LocalPool, state: _TaskState) -> None:
        self._pool = pool
        self._state = state

    def submit(self, mod: tvm.IRModule, thorough: bool = False) -> Future[protocol.Measurement]:
        """Queue one scheduled module of this task."""
        return self._pool._submit(mod, self._state, thorough)

    def measure(self, mods: Sequence[tvm.IRModule]) -> list[protocol.Measurement]:
        """Measure all and wait; results in the order of `mods`."""
        return [future.result() for future in [self.submit(mod) for mod in mods]]

    def close(self) -> None:
        """Nothing to end: the workers are the pool's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _classify(error: Exception, own_fault: _ErrorClass) -> _ErrorClass:
    """A death by SIGKILL came from outside (or from the kernel, short of memory)."""
    if isinstance(error, process.WorkerTimeout):
        return _ErrorClass.TIMEOUT
    if isinstance(error, process.WorkerDied) and error.signal_number != signal.SIGKILL:
        return own_fault
    return _ErrorClass.INFRASTRUCTURE


def _device(built_for: tvm.target.Target) -> str:
    """TVM's name of the device a target runs on, if this machine has it."""
    kind = built_for.kind.name
    if kind == "llvm":
        return "cpu"
    if kind != "cuda":
        raise errors.MeasureError(f"cannot measure target kind {kind!r} on this machine")
    if not tvm.runtime.device("cuda", 0).exist:
        raise errors.MeasureError(
            "no CUDA device here: tune for 'llvm' or on a machine with a GPU"
        )
    nvrtc.check(str(built_for.attrs["arch"]), cuda_driver.version())
    return "cuda"


def _num_cores(built_for: tvm.target.Target) -> int:
    return int(built_for.attrs.get("num-cores", 0)) or cpus.available_cores()


if TYPE_CHECKING:

    def _conforms(pool: LocalPool, view: TaskView) -> tuple[protocol.Measurer, protocol.Measurer]:
        return pool, view
