"""Data of a pool: its options, its device, its tasks and the candidates in its queues."""

from __future__ import annotations

import dataclasses
import hashlib
from concurrent.futures import Future

import tvm

from felix.measure import build, protocol, timing
from felix.measure.cuda import nvrtc
from felix.processes import policy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of a `local.LocalPool`; None means: chosen for the target."""

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
    #: What the workers may have on disk in all; None: as `rights.MAX_SCRATCH_BYTES` says.
    scratch_bytes: int | None = None
    #: Whether the run worker of a GPU is confined (`rights.cuda_runner`); builders always are.
    confine_gpu: policy.ConfineGpu = policy.ConfineGpu.AUTO
    link: build.Link = build.Link.AUTO
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
    #: CUDA: variables for the elements of arrays in registers (`cuda.source.scalars`).
    scalar_registers: bool = True
    #: CUDA: options for NVRTC, beside the architecture.
    nvrtc_options: tuple[str, ...] = nvrtc.FAST
    #: CUDA: a candidate with more source is a build error; the longest built in 6 s had 774 kB.
    max_source_bytes: int = 800_000


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """What candidates run on: TVM's `kind` of device ("cpu", "cuda"), its name and its cache."""

    kind: str
    name: str
    cache_bytes: int


@dataclasses.dataclass(slots=True)
class TaskState:
    """State of one task in the pool; used by the run thread only, but for the first five."""

    target: tvm.target.Target
    device: Device
    folder: str
    payload: str
    #: Libraries of fast candidates by the digest of their payload: one submitted again is not
    #: built again.
    libraries: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Why there is no reference, and how many more times to try to compute one.
    failure: str | None = None
    tries_left: int = 2
    best_us: float | None = None


@dataclasses.dataclass(slots=True)
class Candidate:
    """A program in the queues of the pool, and the future of its measurement."""

    state: TaskState
    payload: str
    #: Of its files, without a suffix.
    name: str
    future: Future[protocol.Measurement]
    thorough: bool = False
    binary: str = ""
    build_s: float = 0.0

    @property
    def digest(self) -> str:
        """Identity of what is built."""
        return hashlib.sha256(self.payload.encode()).hexdigest()

    def failed(
        self, error: protocol.ErrorClass, message: str, run_s: float = 0.0
    ) -> protocol.Measurement:
        """Its measurement if it has no latency."""
        return protocol.Measurement(
            error=error,
            message=message,
            build_s=self.build_s,
            run_s=run_s,
            device=self.state.device.name,
        )
