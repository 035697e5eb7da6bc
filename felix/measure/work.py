"""Data of a pool: its options, its device, its tasks and the candidates in its queues."""

from __future__ import annotations

import dataclasses
import hashlib
from concurrent.futures import Future
from typing import Literal

import tvm

from felix.processes import policy
from felix.runner import protocol, timing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of a `local.LocalPool`; None means: chosen for the target."""

    #: Build workers; None: one a core.
    builders: int | None = None
    #: GPUs to measure on, by their numbers in this process; "all" for all of them, which have to
    #: be of one model. A CPU is one device whatever this says.
    devices: tuple[int, ...] | Literal["all"] = (0,)
    #: CPU seconds of one build. The best kernels of a GPU compile in 0.1 to 2.5 s, and of 160
    #: random programs for a CPU the slowest took 2.3 s.
    build_timeout_s: float = 6.0
    #: For checking and timing one candidate together.
    run_timeout_s: float = 10.0
    reference_timeout_s: float = 120.0
    #: Address space of one builder; a build that needs more is a build error. None: no limit.
    build_memory_bytes: int | None = 8 << 30
    #: What the workers may have on disk in all; None: as `rights.MAX_SCRATCH_BYTES` says.
    scratch_bytes: int | None = None
    #: Whether the run worker of a GPU is confined (`rights.cuda_runner`); builders always are.
    confine_gpu: policy.ConfineGpu = policy.ConfineGpu.AUTO
    #: Time a noise probe on each device (`noise_probe`).
    noise_probe: bool = False
    #: Seed of the inputs.
    seed: int = 0
    #: None: `timing.TimingOptions()` on a CPU, `timing.GPU` on a GPU.
    timing: timing.TimingOptions | None = None
    #: CUDA: a candidate with more source is a build error; the longest built in 6 s had 774 kB.
    max_source_bytes: int = 800_000


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """What candidates run on: TVM's `kind` of device ("cpu", "cuda"), its name and its cache.

    `index` counts the GPUs that this process sees. `visible` is what `CUDA_VISIBLE_DEVICES` of a
    process says that is to see this one alone; empty: it uses the first that it sees.
    """

    kind: str
    name: str
    cache_bytes: int
    index: int = 0
    visible: str = ""


#: Why a task has no expected outputs on a device that has not helped with it.
NOT_COMPUTED = "it is not computed yet"


@dataclasses.dataclass(slots=True, eq=False)
class Reference:
    """The reference of a task, which a builder makes once for all devices.

    `description` and `binary`, a file, are what a device gets (`felix.runner.description`).
    """

    description: str = ""
    binary: str = ""
    #: Why there is none, and how many more times to try to build one.
    failure: str | None = None
    tries_left: int = 2

    @property
    def is_settled(self) -> bool:
        """Whether it is there, or never will be."""
        return self.description != "" or (self.failure is not None and self.tries_left <= 0)

    def settle(self, made: Built) -> None:
        """Take what a builder has made; what took too long would do so again."""
        if made.error is None:
            self.description, self.binary, self.failure = made.description, made.binary, None
            return
        self.failure = made.message
        is_too_long = made.error is protocol.ErrorClass.TIMEOUT
        self.tries_left = 0 if is_too_long else self.tries_left - 1


@dataclasses.dataclass(slots=True)
class TaskState:
    """State of one task on one device; used by that device's thread only."""

    device: Device
    folder: str
    reference: Reference
    #: Why there are no expected outputs, and how many more times to try to compute them.
    failure: str | None = None
    tries_left: int = 2
    best_us: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class PoolTask:
    """One task in the pool: its primary, its state on each device and its reference.

    Latencies are those of the first primary; `scales` has, by device, what those of another one
    are multiplied with, once it is calibrated by the `fastest` candidate so far. A device that is
    in `refused` measures nothing of the task.
    """

    primary: int
    states: list[TaskState]
    #: What builders make the reference of, and of which its files have the name.
    payload: str = ""
    name: str = ""
    #: Of its programs; None where they come built.
    target: tvm.target.Target | None = None
    #: How often a machine that had it was lost.
    losses: int = 0
    #: Libraries of fast candidates by the digest of their payload: one submitted again is not
    #: built again.
    libraries: dict[str, str] = dataclasses.field(default_factory=dict)
    fastest: Fastest | None = None
    scales: dict[int, float] = dataclasses.field(default_factory=dict)
    refused: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scales[self.primary] = 1.0

    @property
    def on_primary(self) -> TaskState:
        """Its state on its primary."""
        return self.states[self.primary]

    @property
    def reference(self) -> Reference:
        """The same on all devices."""
        return self.on_primary.reference

    def note(self, measured: Fastest) -> None:
        """Compare devices by this candidate if it is the fastest: it met no busy moment."""
        if self.fastest is None or measured.latency_us < self.fastest.latency_us:
            self.fastest = measured

    def move_to(self, primary: int) -> None:
        """Another primary; it is calibrated if anything was measured before."""
        self.primary = primary
        self.refused.pop(primary, None)
        if self.fastest is None:
            self.scales = {primary: 1.0}


@dataclasses.dataclass(frozen=True, slots=True)
class Fastest:
    """A candidate's binary and its latency on the task's first primary, to compare devices by."""

    binary: str
    latency_us: float


@dataclasses.dataclass(slots=True, eq=False)
class QueuedProgram:
    """A program in the queues of the pool, and the future of its measurement."""

    task: PoolTask
    payload: str
    #: Of its files, without a suffix.
    name: str
    future: Future[protocol.Measurement] = dataclasses.field(default_factory=Future)
    thorough: bool = False
    binary: str = ""
    build_s: float = 0.0
    #: How often a machine that had it was lost.
    losses: int = 0

    @property
    def digest(self) -> str:
        """Identity of what is built."""
        return hashlib.sha256(self.payload.encode()).hexdigest()

    def claim(self) -> bool:
        """Take it, so that it cannot be cancelled any more; False if somebody cancelled it."""
        return self.future.running() or self.future.set_running_or_notify_cancel()

    def may_run_on(self, device: int) -> bool:
        """Whether a device that is not its task's primary may run it."""
        task = self.task
        return not self.thorough and task.fastest is not None and device not in task.refused

    def without_reference(self, why: str) -> protocol.Measurement:
        """Its measurement if its task has no reference."""
        message = f"the unscheduled program gave no reference: {why}"
        return self.failed(protocol.ErrorClass.INFRASTRUCTURE, message)

    def failed(
        self, error: protocol.ErrorClass, message: str, run_s: float = 0.0
    ) -> protocol.Measurement:
        """Its measurement if it has no latency."""
        return protocol.Measurement(
            error=error,
            message=message,
            build_s=self.build_s,
            run_s=run_s,
            device=self.task.on_primary.device.name,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """What became of a build: `binary`, a file, or an error with a message.

    `build_s` are CPU seconds of the builder. A reference comes with its task's description.
    """

    binary: str = ""
    description: str = ""
    build_s: float = 0.0
    error: protocol.ErrorClass | None = None
    message: str = ""


class WorkerGone(Exception):
    """The machine that had a candidate, or its process, is gone: another one may have it."""
