"""From a program to a cubin and the launches that run it, without host code.

TVM lowers a scheduled module and writes its CUDA source; NVRTC makes the cubin. The host function
that TVM would compile is not built: its launches are read off its body (`launches`), and `runner`
launches them by the driver. A generated program comes with source and launches. Where the time
goes for typical candidates is in docs/design/measuring-cuda.md.

A builder touches no device: a machine without one can build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import tvm

from felix import launch_plan
from felix.builder import payload as payloads
from felix.builder.cuda import cubins, launches
from felix.runner import description
from felix.runner.cuda import nvrtc
from felix.target import cpu
from felix.templates.generated import GeneratedProgram

#: TVM copies asynchronously (`cp.async`) only where this says so; without it, software-pipelined
#: loops wait for copies that were not asynchronous.
ASYNC_COPIES: dict[str, bool] = {"tirx.use_async_copy": True}
#: Leaves two passes out; see `lower`.
_PASSES: dict[str, Any] = {
    "config": {**ASYNC_COPIES, "tirx.disable_cse_tir": True},
    "disabled_pass": ["tirx.RemoveNoOp"],
}
#: Threads that compile kernels, at most.
MAX_THREADS = 16
#: TVM's function that makes a module of kernels.
_BUILD = "target.build.cuda"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A program as CUDA source: its launches and its source."""

    plan: launch_plan.LaunchPlan
    source: cubins.Source
    arch: str


def handle(payload: str, stem: str, max_source_bytes: int) -> dict[str, Any]:
    """The `build` verb for CUDA: the result goes to `stem` + ".cubin"."""
    program = payloads.read(payload)
    if isinstance(program, GeneratedProgram):
        lowered = of_generated(program)
    else:
        lowered = lower(launches.PREPARED(program.mod), program.target)
    source = lowered.source
    if len(source.text) > max_source_bytes:
        size = len(source.text)
        raise launches.BuildError(f"{size} bytes of source would take too long to compile")
    cubin = nvrtc.compile_cubin(source.text, lowered.arch, headers=source.headers)
    description.write_program(stem + ".cubin", lowered.plan, cubin)
    return {"library": stem + ".cubin"}


def of_generated(program: GeneratedProgram) -> DeviceProgram:
    """A generated program as what NVRTC compiles: its source as it is."""
    source = cubins.Source(program.source, headers="#include" in program.source)
    return DeviceProgram(program.plan, source, program.arch)


def cubin_of(program: GeneratedProgram) -> bytes:
    """The cubin of a generated program, as it is measured.

    Raises:
        CompileError: NVRTC refuses the source.
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    return cubins.compiled(of_generated(program).source, program.arch)


def ptx_of(program: GeneratedProgram) -> str:
    """The PTX of a generated program; raises as `cubin_of`."""
    source = of_generated(program).source
    return nvrtc.compile_ptx(source.text, program.arch, headers=source.headers)


def lower(mod: tvm.IRModule, target: tvm.target.Target) -> DeviceProgram:
    """Lower a scheduled module and write its source.

    Two passes of TVM are left out, elimination of common subexpressions and of statements that do
    nothing. They take a third of the time, more of long programs, and what they add to the source
    is variables that nothing reads: NVRTC makes the same cubin without (of 257 in 258 small ones).

    Raises:
        BuildError: its host part does more than launch kernels in a fixed order.
    """
    n_params = len(mod["main"].params)
    # Also the name of a function in its package, so plain import statements find that.
    build: Any = importlib.import_module("tvm.tirx.build")
    bound = tvm.tirx.transform.BindTarget(target)(mod)
    pipeline, _, finalize = tvm.tirx.get_default_tir_pipeline(target)
    with tvm.transform.PassContext(**_PASSES):
        host, devices = build.split_host_device_mods(pipeline(bound))
    if len(devices) != 1:
        raise launches.BuildError(f"{len(devices)} kinds of device code in one program")
    ((kernel_target, kernels),) = devices.items()
    plan = launches.plan_of(host["main"], n_params)
    text = _source(finalize()(kernels), kernel_target)
    return DeviceProgram(plan, cubins.slim(text), str(target.attrs["arch"]))


def module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """A scheduled module as TVM builds it, host code and all, with the cubin that was measured.

    TVM's own compiler needs a CUDA toolkit and `cuda-bindings`; this needs what measuring needs.

    Raises:
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    with compiling(target):
        return tvm.tirx.build(mod, target)


@contextlib.contextmanager
def compiling(target: tvm.target.Target) -> Iterator[None]:
    """TVM builds kernels as they are measured until the block ends; raises as `module`."""
    nvrtc.load()
    with compiled_by(lambda code: cubin(str(code), target)), passes():
        yield


@contextlib.contextmanager
def kernels_apart() -> Iterator[None]:
    """TVM makes each kernel of a program a module of its own until the block ends.

    They are compiled side by side. One that was compiled before, as part of another network, is
    found on disk.
    """
    whole: Any = tvm.get_global_func(_BUILD)

    def apart(kernels: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        alone = [
            tvm.IRModule({variable: kernel}, attrs=kernels.attrs)
            for variable, kernel in kernels.functions_items()
        ]
        width = min(MAX_THREADS, len(alone), cpu.available_cores())
        with futures.ThreadPoolExecutor(width) as threads:
            first, *others = threads.map(lambda each: whole(each, target), alone)
        for each in others:
            first.import_module(each)
        return first

    tvm.register_global_func(_BUILD, apart, override=True)
    try:
        yield
    finally:
        tvm.register_global_func(_BUILD, whole, override=True)


def cubin(code: str, target: tvm.target.Target) -> bytes:
    """The cubin of CUDA source that TVM generated, as it is measured; raises as `cubin_of`."""
    return cubins.compiled(cubins.slim(code), str(target.attrs["arch"]))


def passes() -> tvm.transform.PassContext:
    """How TVM builds kernels that are measured: a context of one thread.

    Further threads inside a `compiling` block need one each.
    """
    return tvm.transform.PassContext(**_PASSES)


def ptx(code: str, target: tvm.target.Target) -> str:
    """The PTX of CUDA source that TVM generated; raises as `cubin_of`."""
    source = cubins.slim(code)
    return nvrtc.compile_ptx(source.text, str(target.attrs["arch"]), headers=source.headers)


def _source(kernels: tvm.IRModule, target: tvm.target.Target) -> str:
    """CUDA source of lowered kernels, without TVM's own compilation."""
    texts: list[str] = []

    def record(code: str) -> bytes:
        texts.append(str(code))
        return b"not compiled"

    with compiled_by(record):
        module = tvm.get_global_func(_BUILD)(kernels, target)
    return texts[0] if texts else str(module.inspect_source())


@contextlib.contextmanager
def compiled_by(compile_source: Callable[[str], bytes]) -> Iterator[None]:
    """TVM's builds for CUDA call this function with their source until the block ends."""
    name = "tvm_callback_cuda_compile"
    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_global_func(name, compile_source, override=True)
    try:
        yield
    finally:
        if before is not None:
            tvm.register_global_func(name, before, override=True)
