"""A built network: TVM's virtual machine with its parameters, called with PyTorch's tensors.

Parameters are converted once. Inputs go in and outputs come out without copies (DLPack); an input
that is not contiguous, or does not begin at a multiple of `ALIGNMENT_BYTES`, is copied. Memory for
intermediate values is planned when the network is built, and made once (`passes.memory`). On a GPU
the kernels run on PyTorch's current stream, and nothing waits for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import torch
import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from felix import errors
from felix.builder import preparation
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import launches
from felix.network.passes import intermediates, memory, outputs, prepacking
from felix.runner.cpu import openmp
from felix.target import cpu
from felix.tir import unit_reductions

#: TVM's programs expect tensors to begin at a multiple of this.
ALIGNMENT_BYTES = 64
#: Parameters of so many bytes are not copied to keep them fixed.
SHARED_BYTES = 2**20
#: Threads that compile networks.
_MAX_THREADS = 16


class Executable:
    """A network that runs; safe to call from several threads, one at a time.

    Args:
        built: the compiled network.
        parameters: the inputs of its `main` behind those of a call; before they are prepacked, if
            the network was (`felix.network.passes.prepacking`).
        device: where it runs.
        is_fixed: whether its parameters are to stay what they are: small ones are copied, large
            ones share memory, and `check_unchanged` tells when their owner changed them.

    Attributes:
        parameters: as they are passed, after prepacking.
    """

    def __init__(
        self,
        built: relax.VMExecutable,
        parameters: Sequence[Any],
        device: tvm.runtime.Device,
        *,
        is_fixed: bool = False,
    ) -> None:
        self.built = built
        self._is_fixed = is_fixed
        self._is_gpu = device != tvm.cpu()
        #: parameters whose memory is shared, and their versions
        self._shared: list[tuple[torch.Tensor, int]] = []
        self._machine = _machine(built, device)
        self._main = call(self._machine)
        self._device = device
        self._prepack = (
            self._machine[prepacking.TRANSFORM]
            if self._machine.module.implements_function(prepacking.TRANSFORM)
            else None
        )
        self.replace_parameters(parameters)
        self._shared_outputs: list[int] | None = None
        self._turns = Turns(self._is_gpu)
        #: programs that take memory from TVM's pool: a CUDA graph cannot have their calls
        self.pool_users: list[str] = intermediates.pool_users(built) if self._is_gpu else []

    def replace_parameters(self, parameters: Sequence[Any]) -> None:
        """Let later calls have other values of the parameters.

        A graph that was captured before has those of its capture: capture again.
        """
        passed = [on_device(each, self._device) for each in parameters]
        kept = passed if self._prepack is None else list(self._prepack(tuple(passed)))
        if self._is_fixed:
            self._shared = _watched(parameters)
            kept = _own(kept, passed, {tensor.data_ptr() for tensor, _ in self._shared})
        self.parameters = kept

    def check_unchanged(self) -> None:
        """Parameters of fixed values are what they were.

        Raises:
            WorkloadError: one that is shared was changed in place.
        """
        for tensor, version in self._shared:
            if tensor._version != version:
                raise errors.WorkloadError(
                    "parameters of the model were changed after felix.optimize; call it again: "
                    "it measures nothing then"
                )

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call; none lies where an input, a parameter or another output does.

        Raises:
            TuningError: a CUDA graph is being captured that cannot have the network's calls.
        """
        ready = [as_stored(each) for each in inputs]
        results = self.run(ready)
        if self._shared_outputs is None:  # which these are is the same for each call
            self._shared_outputs = self._found(results, {each.data_ptr() for each in ready})
        for number in self._shared_outputs:
            results[number] = results[number].clone()
        return results

    def run(
        self, ready: Sequence[torch.Tensor], instrument: Callable[..., int] | None = None
    ) -> list[torch.Tensor]:
        """The outputs of one call as they are, which may be inputs, parameters or each other.

        Args:
            ready: inputs as TVM takes them (`as_stored`).
            instrument: is called before and after each step (`VirtualMachine.set_instrument`).

        Raises:
            TuningError: a CUDA graph is being captured that cannot have the network's calls.
        """
        with self.turn():
            if instrument is None:
                results = self._main(*ready, *self.parameters)
            else:
                results = self._instrumented(ready, instrument)
        if isinstance(results, torch.Tensor):
            return [results]
        if isinstance(results, tvm.runtime.Tensor):
            return [as_tensor(results)]
        return [as_tensor(each) for each in results]

    def _instrumented(self, ready: Sequence[torch.Tensor], instrument: Callable[..., int]) -> Any:
        self._machine.set_instrument(instrument)
        try:
            return self._main(*ready, *self.parameters)
        finally:
            self._machine.set_instrument(None)

    def _found(self, results: Sequence[torch.Tensor], taken: set[int]) -> list[int]:
        """Numbers of the outputs that begin where an input, a parameter or another one does."""
        taken |= {as_tensor(each).data_ptr() for each in self.parameters}
        found = []
        for number, each in enumerate(results):
            if each.data_ptr() in taken:
                found.append(number)
            taken.add(each.data_ptr())
        return found

    def turn(self) -> Turns:
        """One thread's turn, as a context.

        Raises:
            TuningError: a CUDA graph is being captured that cannot have the network's calls.
        """
        if self.pool_users and is_capturing():
            # a replay would write to memory that is another call's
            raise errors.TuningError(
                f"{self.pool_users[0]} takes memory from TVM's pool: a CUDA graph cannot "
                f"have the network's calls"
            )
        return self._turns


class Turns:
    """Turns of threads that use the same memory, one at a time; on a GPU a turn begins when the
    last one, on another stream, has ended. As a context it is one turn."""

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._lock = threading.Lock()
        self._stream: torch.cuda.Stream | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._is_gpu and not is_capturing():
            stream = torch.cuda.current_stream()
            if self._stream is not None and stream != self._stream:
                stream.wait_stream(self._stream)
            self._stream = stream

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def is_capturing() -> bool:
    """Whether calls are recorded as a CUDA graph."""
    is_used: Any = torch.cuda.is_initialized
    return bool(is_used()) and torch.cuda.is_current_stream_capturing()


def call(machine: relax.VirtualMachine) -> Callable[..., Any]:
    """A network's `main`, with memory for its intermediate values that is its own.

    It is not safe to be called again before the earlier call's kernels have ended or are queued
    on the same stream.
    """
    main: Callable[..., Any] = machine["main"]
    if not machine.module.implements_function(memory.FUNCTION):
        return main
    storages = tuple(machine[memory.FUNCTION]())
    return lambda *tensors: main(*tensors, *storages)


def loaded(built: relax.VMExecutable, full: tvm.target.Target) -> Callable[..., Any]:
    """`call` of a network that is built, on this machine's device of a target."""
    return call(_machine(built, device(full)))


def _machine(built: relax.VMExecutable, place: tvm.runtime.Device) -> relax.VirtualMachine:
    """A virtual machine, whose programs share PyTorch's threads on a CPU."""
    if place == tvm.cpu():
        openmp.use()
    return relax.VirtualMachine(built, place)


def build(
    mod: tvm.IRModule,
    full: tvm.target.Target,
    parameters: Sequence[Any],
    *,
    is_fixed: bool = False,
) -> Executable:
    """An assembled network, compiled and loaded on this machine's device of a target.

    Raises:
        MeasureError: for a GPU, and NVRTC or headers are missing here.
    """
    return Executable(compile_network(mod, full), parameters, device(full), is_fixed=is_fixed)


def compile_network(mod: tvm.IRModule, full: tvm.target.Target) -> relax.VMExecutable:
    """Compile an assembled network, its programs as they are compiled when they are measured.

    Raises:
        MeasureError: for a GPU, and NVRTC or headers are missing here.
    """
    (built,) = compile_networks([mod], full)
    return built


def compile_networks(
    mods: Sequence[tvm.IRModule], full: tvm.target.Target
) -> list[relax.VMExecutable]:
    """Compile several networks as `compile_network` does, side by side in threads."""
    is_gpu = full.kind.name == "cuda"

    def compiled(mod: tvm.IRModule) -> relax.VMExecutable:
        with cuda_build.passes() if is_gpu else contextlib.nullcontext():
            return relax.build(mod, target=full, relax_pipeline=_pipeline(full))

    with contextlib.ExitStack() as stack:
        if is_gpu:  # TVM calls functions of the process: set once, for all threads
            stack.enter_context(cuda_build.compiling(full))
            stack.enter_context(cuda_build.kernels_apart())
        if len(mods) == 1:
            return [compiled(mods[0])]
        width = min(_MAX_THREADS, cpu.available_cores())
        with futures.ThreadPoolExecutor(width) as threads:
            return list(threads.map(compiled, mods))


def _pipeline(full: tvm.target.Target) -> tvm.transform.Pass:
    """What is left to do with a lowered network; operators are fused already.

    Programs are prepared as those that are measured; on a GPU those without threads get a schedule
    of TVM's rules before.
    """
    schedule = [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]
    is_gpu = full.kind.name == "cuda"
    if is_gpu:
        schedule += [default_schedules(), launches.PREPARED, intermediates.Lift()]
    else:
        schedule.append(preparation.PREPARED)
    return tvm.transform.Sequential(
        [
            *schedule,
            relax.transform.ToNonDataflow(),
            outputs.Bare(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            *([memory.Separate()] if is_gpu else []),
            memory.Lift(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def device(full: tvm.target.Target) -> tvm.runtime.Device:
    """The device of this machine that a target's programs run on."""
    return tvm.runtime.device("cpu" if full.kind.name == "llvm" else str(full.kind.name), 0)


def as_stored(value: torch.Tensor) -> torch.Tensor:
    """A tensor as TVM takes it: contiguous and aligned; the same memory where it is so already."""
    tensor = (value.detach() if value.requires_grad else value).contiguous()
    if not tensor.numel():  # TVM looks at strides that nothing is read by
        strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
        return tensor.as_strided(tensor.shape, strides)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor


def as_tensor(output: Any) -> torch.Tensor:
    """A result of a network, or a tensor of TVM, as PyTorch's tensor; the same memory."""
    return output if isinstance(output, torch.Tensor) else torch.utils.dlpack.from_dlpack(output)


def _watched(parameters: Sequence[Any]) -> list[tuple[torch.Tensor, int]]:
    """Large parameters with their versions, which in-place changes count."""
    return [
        (each, each._version)
        for each in parameters
        if isinstance(each, torch.Tensor)
        and each.nbytes >= SHARED_BYTES
        and not each.is_inference()
    ]


def _own(
    kept: Sequence[tvm.runtime.Tensor], passed: Sequence[tvm.runtime.Tensor], shared: set[int]
) -> list[tvm.runtime.Tensor]:
    """Parameters to keep, copied where they lie in memory of those that were passed, but for those
    at addresses that may be shared."""
    taken = {as_tensor(each).data_ptr() for each in passed} - shared
    pairs = ((each, as_tensor(each)) for each in kept)
    return [
        tvm.runtime.from_dlpack(tensor.clone()) if tensor.data_ptr() in taken else each
        for each, tensor in pairs
    ]


def on_device(value: Any, place: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """A tensor as TVM's on a device; the same memory if it lies there already."""
    if isinstance(value, torch.Tensor):
        value = tvm.runtime.from_dlpack(as_stored(value))
    return value if value.device == place else value.copyto(place)


# TVM's default schedules of a GPU (dlight), for programs that have no threads.

#: What TVM's rules raise on programs that they were not written for.
_RULE_ERRORS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_log = logging.getLogger("felix.network")


def default_schedules() -> tvm.transform.Pass:
    """The pass that schedules the PrimFuncs of a module; the last rule takes every program."""
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction())
    scheduled = dlight.ApplyDefaultSchedule(*map(_Careful, rules), gpu.Fallback())
    return tvm.transform.Sequential([unit_reductions.REMOVED, scheduled])


@dataclasses.dataclass(frozen=True, slots=True)
class _Careful:
    """A rule that leaves programs to the others on which it fails."""

    rule: Any

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """The rule's schedules; None where it has none."""
        try:
            return self.rule.apply(func, target, tunable)
        except _RULE_ERRORS as error:
            _log.debug("%s fails: %s", type(self.rule).__name__, error)
            return None
