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
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm_ffi import structural

from felix import launch_plan
from felix.measure import description
from felix.measure import payload as payloads
from felix.measure.cuda.building import cubins, launches, nvrtc
from felix.templates.generated import GeneratedProgram

_EXPLICIT = "pragma_unroll_explicit"
#: TVM copies asynchronously (`cp.async`) only where this says so; without it, software-pipelined
#: loops wait for copies that were not asynchronous.
ASYNC_COPIES: dict[str, bool] = {"tirx.use_async_copy": True}
#: Leaves two passes out; see `lower`.
_PASSES: dict[str, Any] = {
    "config": {**ASYNC_COPIES, "tirx.disable_cse_tir": True},
    "disabled_pass": ["tirx.RemoveNoOp"],
}


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A program as CUDA source: its launches, its source, and the seconds that writing it took."""

    plan: launch_plan.LaunchPlan
    source: cubins.Source
    arch: str
    lower_s: float


def handle(
    payload: str,
    stem: str,
    max_source_bytes: int,
    explicit: bool,
    scalars: bool,
    options: Sequence[str],
) -> dict[str, Any]:
    """The `build` verb for CUDA: the result goes to `stem` + ".cubin"."""
    program = payloads.read(payload)
    if isinstance(program, GeneratedProgram):
        lowered = of_generated(program)
    else:
        mod = launches.PREPARED(program.mod)
        lowered = lower(
            mod if explicit or pipelined(mod) else implicit(mod), program.target, scalars
        )
    size = len(lowered.source.text)
    if size > max_source_bytes:
        raise launches.BuildError(f"{size} bytes of source would take too long to compile")
    start = time.perf_counter()
    source = lowered.source
    cubin = nvrtc.compile_cubin(source.text, lowered.arch, options, headers=source.headers)
    compile_s = time.perf_counter() - start
    description.write_program(stem + ".cubin", lowered.plan, cubin)
    return {
        "library": stem + ".cubin",
        "source_bytes": size,
        "cubin_bytes": len(cubin),
        "lower_s": lowered.lower_s,
        "compile_s": compile_s,
    }


def of_generated(program: GeneratedProgram) -> DeviceProgram:
    """A generated program as what NVRTC compiles: its source as it is."""
    source = cubins.Source(program.source, headers="#include" in program.source)
    return DeviceProgram(program.plan, source, program.arch, lower_s=0.0)


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


def implicit(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with `#pragma unroll` where it would be unrolled by TVM.

    MetaSchedule's spaces unroll explicitly; TVM then writes every iteration out. The compiler
    unrolls a loop under a pragma just the same, from a tenth of the text.
    """

    def changed(loop: Any) -> Any:
        if _EXPLICIT not in loop.annotations:
            return loop
        annotations = {**dict(loop.annotations), _EXPLICIT: 0}
        return tvm.tirx.For(
            loop.loop_var,
            loop.min,
            loop.extent,
            loop.kind,
            loop.body,
            loop.thread_binding,
            annotations,
            loop.step,
            loop.span,
        )

    func = mod["main"]
    body = structural.structural_map(func.body, ((tvm.tirx.For, changed),))
    return tvm.IRModule({"main": func.with_body(body)}, attrs=mod.attrs)


def pipelined(mod: tvm.IRModule) -> bool:
    """Whether a loop is software-pipelined: TVM's asynchronous copies need constant indices."""
    return any(key.startswith("software_pipeline") for key, _ in _annotations(mod))


def unrolls(mod: tvm.IRModule) -> bool:
    """Whether some loops are to be written out."""
    return any(key == "pragma_auto_unroll_max_step" and value for key, value in _annotations(mod))


def _annotations(mod: tvm.IRModule) -> list[tuple[str, Any]]:
    """Keys and values of all loop annotations of a program."""
    annotations: list[tuple[str, Any]] = []

    def note(loop: tvm.tirx.For) -> None:
        annotations.extend((str(key), value) for key, value in loop.annotations.items())

    structural.structural_walk(mod["main"].body, ((tvm.tirx.For, note),))
    return annotations


def lower(mod: tvm.IRModule, target: tvm.target.Target, scalars: bool = True) -> DeviceProgram:
    """Lower a scheduled module and write its source, with `source.scalars` or without.

    Two passes of TVM are left out, elimination of common subexpressions and of statements that do
    nothing. They take a third of the time, more of long programs, and what they add to the source
    is variables that nothing reads: NVRTC makes the same cubin without (of 257 in 258 small ones).

    Raises:
        BuildError: its host part does more than launch kernels in a fixed order.
    """
    start = time.perf_counter()
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
    source = cubins.slim(text, scalars)
    return DeviceProgram(plan, source, str(target.attrs["arch"]), time.perf_counter() - start)


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
    """TVM builds kernels as they are measured until the block ends.

    Raises:
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    nvrtc.load()
    with compiled_by(lambda code: cubin(str(code), target)), passes():
        yield


def cubin(code: str, target: tvm.target.Target) -> bytes:
    """The cubin of CUDA source that TVM generated, compiled as it is measured.

    Raises:
        CompileError: NVRTC refuses it.
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    return cubins.compiled(cubins.slim(code), str(target.attrs["arch"]))


def passes() -> tvm.transform.PassContext:
    """How TVM builds kernels that are measured: a context of one thread.

    Further threads inside a `compiling` block need one each.
    """
    return tvm.transform.PassContext(**_PASSES)


def ptx(code: str, target: tvm.target.Target) -> str:
    """The PTX of CUDA source that TVM generated, compiled as it is measured.

    Raises:
        CompileError: NVRTC refuses it.
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    source = cubins.slim(code)
    return nvrtc.compile_ptx(source.text, str(target.attrs["arch"]), headers=source.headers)


def _source(kernels: tvm.IRModule, target: tvm.target.Target) -> str:
    """CUDA source of lowered kernels, without TVM's own compilation."""
    texts: list[str] = []

    def record(code: str) -> bytes:
        texts.append(str(code))
        return b"not compiled"

    with compiled_by(record):
        module = tvm.get_global_func("target.build.cuda")(kernels, target)
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
