"""From a scheduled module to a cubin and the launches that run it, without host code.

TVM lowers the module and writes the CUDA source; NVRTC makes the cubin. The host function that
TVM would compile (argument checks, then launches) is not built: the launches are read off its
body and kept as a `Plan`, which `cuda_run` plays through the driver. Where the time goes for
typical candidates is in docs/measuring-cuda.md.

A builder touches no device: a machine without one can build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm_ffi import structural

from felix.measure.cuda import nvrtc
from felix.measure.cuda import source as cuda_source

#: Kinds of `tvm_struct_get`: an argument's handle.
_ARGUMENT_HANDLE = 15
_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_EXPLICIT = "pragma_unroll_explicit"
#: Leaves two passes out; see `lower`.
_FEWER_PASSES: dict[str, Any] = {
    "config": {"tirx.disable_cse_tir": True},
    "disabled_pass": ["tirx.RemoveNoOp"],
}
_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"


class BuildError(Exception):
    """The candidate cannot be built or would take too long to."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `extents` are grid x, y, z and block x, y, z.

    `args` are tensors: 0 <= i < number of parameters names a parameter, the following numbers
    the workspaces of the plan.
    """

    kernel: str
    extents: tuple[int, int, int, int, int, int]
    shared_bytes: int
    args: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a call of the program does: `launches` in order, with `workspaces` in bytes."""

    n_params: int
    workspaces: tuple[int, ...]
    launches: tuple[Launch, ...]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        fields = json.loads(text)
        launches = tuple(
            Launch(launch["kernel"], tuple(launch["extents"]), launch["shared_bytes"],
                   tuple(launch["args"]))
            for launch in fields["launches"]
        )  # fmt: skip
        return cls(fields["n_params"], tuple(fields["workspaces"]), launches)


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A program lowered for the device: its plan, its source, and what it took."""

    plan: Plan
    source: cuda_source.Source
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
    mod, target = tvm.ir.load_json(payload)
    lowered = lower(mod if explicit or pipelined(mod) else implicit(mod), target, scalars)
    size = len(lowered.source.text)
    if size > max_source_bytes:
        raise BuildError(f"{size} bytes of source would take too long to compile")
    start = time.perf_counter()
    source = lowered.source
    cubin = nvrtc.compile_cubin(source.text, lowered.arch, options, headers=source.headers)
    compile_s = time.perf_counter() - start
    write(stem + ".cubin", lowered.plan, cubin)
    return {
        "library": stem + ".cubin",
        "source_bytes": size,
        "cubin_bytes": len(cubin),
        "lower_s": lowered.lower_s,
        "compile_s": compile_s,
    }


def write(path: str, plan: Plan, cubin: bytes) -> None:
    """Plan and cubin in one file, which `read` reads."""
    pathlib.Path(path).write_bytes(plan.to_json().encode() + b"\n" + cubin)


def read(path: str) -> tuple[Plan, bytes]:
    """Plan and cubin of a file that `write` made."""
    head, _, cubin = pathlib.Path(path).read_bytes().partition(b"\n")
    return Plan.from_json(head.decode()), cubin


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
            loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding,
            annotations, loop.step, loop.span,
        )  # fmt: skip

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
    found: list[tuple[str, Any]] = []

    def note(loop: Any) -> None:
        found.extend((str(key), value) for key, value in loop.annotations.items())

    structural.structural_walk(mod["main"].body, ((tvm.tirx.For, note),))
    return found


def lower(mod: tvm.IRModule, target: tvm.target.Target, scalars: bool = True) -> Device:
    """Lower a scheduled module and write its source, `cuda_source.scalars` or not.

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
    with tvm.transform.PassContext(**_FEWER_PASSES):
        host, devices = build.split_host_device_mods(pipeline(bound))
    if len(devices) != 1:
        raise BuildError(f"{len(devices)} kinds of device code in one program")
    ((kernel_target, kernels),) = devices.items()
    plan = _plan(host["main"], n_params)
    text = _source(finalize()(kernels), kernel_target)
    source = cuda_source.slim(text, scalars)
    return Device(plan, source, str(target.attrs["arch"]), time.perf_counter() - start)


def module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """A scheduled module as TVM builds it, host code and all, with the cubin that was measured.

    TVM's own compiler wants a CUDA toolkit and `cuda-bindings`; this needs what measuring needs.

    Raises:
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    nvrtc.load()
    arch = str(target.attrs["arch"])

    def cubin(code: str) -> bytes:
        source = cuda_source.slim(str(code))
        return nvrtc.compile_cubin(source.text, arch, headers=source.headers)

    with _compiled_by(cubin), tvm.transform.PassContext(**_FEWER_PASSES):
        return tvm.tirx.build(mod, target)


def _source(kernels: tvm.IRModule, target: tvm.target.Target) -> str:
    """CUDA source of lowered kernels; TVM's own compilation is kept from running."""
    seen: list[str] = []

    def keep(code: str) -> bytes:
        seen.append(str(code))
        return b"not compiled"

    with _compiled_by(keep):
        module = tvm.get_global_func("target.build.cuda")(kernels, target)
    return seen[0] if seen else str(module.inspect_source())


@contextlib.contextmanager
def _compiled_by(compile_source: Callable[[str], bytes]) -> Iterator[None]:
    """TVM's builds for CUDA call this function with their source until the block ends."""
    name = "tvm_callback_cuda_compile"
    before = tvm.get_global_func(name, allow_missing=True)
    tvm.register_global_func(name, compile_source, override=True)
    try:
        yield
    finally:
        if before is not None:
            tvm.register_global_func(name, before, override=True)


def _plan(func: Any, n_params: int) -> Plan:
    """The launches of a host function, in order."""
    reader = _HostReader()
    structural.structural_walk(func.body, ((tvm.runtime.Object, reader.visit),), order="pre")
    if reader.refused is not None:
        raise BuildError(reader.refused)
    workspaces: list[int] = []
    numbers: list[tuple[Any, int]] = []
    for buffer in reader.allocated:
        numbers.append((buffer, n_params + len(workspaces)))
        size = math.prod(int(extent) for extent in buffer.shape)
        workspaces.append(size * tvm.DataType(str(buffer.dtype)).itemsize)

    def number(var: Any) -> int:
        for buffer, position in numbers:
            if buffer.same_as(var):
                return position
        for buffer, source in reader.declared:
            if buffer.same_as(var):
                return number(source)
        for handle_var, position in reader.handles:
            if handle_var.same_as(var):
                return position
        raise BuildError(f"cannot tell which tensor {var} is")

    launches = tuple(
        Launch(kernel, *_geometry(tags, values), tuple(number(var) for var in tensors))
        for kernel, tensors, tags, values in reader.launches
    )
    if not launches:
        raise BuildError("the program launches nothing")
    return Plan(n_params, tuple(workspaces), launches)


def _geometry(
    tags: Sequence[str], values: Sequence[int]
) -> tuple[tuple[int, int, int, int, int, int], int]:
    """Extents and dynamic shared bytes from launch parameters."""
    given = dict(zip(tags, values, strict=True))
    shared_bytes = given.pop(_DYNAMIC_SHARED, 0)
    unknown = set(given) - set(_AXES)
    if unknown:
        raise BuildError(f"unknown launch parameters {sorted(unknown)}")
    x, y, z, tx, ty, tz = (given.get(axis, 1) for axis in _AXES)
    return (x, y, z, tx, ty, tz), shared_bytes


class _HostReader:
    """What a host function allocates, names and launches."""

    def __init__(self) -> None:
        #: Why the function is none that a plan describes; errors raised inside a walk lose
        #: their class on the way through TVM.
        self.refused: str | None = None
        self.handles: list[tuple[Any, int]] = []
        self.declared: list[tuple[Any, Any]] = []
        self.allocated: list[Any] = []
        self.launches: list[tuple[str, list[Any], list[str], list[int]]] = []

    def visit(self, node: Any) -> None:
        """One node, outer ones first."""
        kind = type(node).__name__
        if kind in ("For", "While"):
            self.refused = "the host part of the program has a loop"
        elif kind == "Bind":
            position = _argument(node.value)
            if position is not None:
                self.handles.append((node.var, position))
        elif kind == "DeclBuffer":
            sources = list(_vars(node.data))
            if len(sources) == 1:
                self.declared.append((node.buffer, sources[0]))
        elif kind == "AllocBuffer":
            self.allocated.append(node.buffer)
        elif kind == "Call" and getattr(node.op, "name", "") == "tirx.call_ffi_kernel":
            self._launch(node)

    def _launch(self, call: Any) -> None:
        tags = [str(tag) for tag in call.attrs.launch_params]
        tensors = list(call.args[1 : len(call.args) - len(tags)])
        values = [int(value) for value in call.args[len(call.args) - len(tags) :]]
        roots = []
        for tensor in tensors:
            found = list(_vars(tensor))
            if len(found) != 1:
                self.refused = "a kernel has an argument that is no tensor"
                return
            roots.append(found[0])
        self.launches.append((str(call.args[0].value), roots, tags, values))


def _argument(value: Any) -> int | None:
    """The parameter whose handle an expression reads, None if it reads none."""
    for call in _nodes(value, tvm.ir.Call):
        if call.op.name == "tirx.tvm_struct_get" and int(call.args[2]) == _ARGUMENT_HANDLE:
            return int(call.args[1])
    return None


def _vars(value: Any) -> Iterator[Any]:
    yield from _nodes(value, tvm.ir.Var)


def _nodes(value: Any, kind: Any) -> list[Any]:
    found: list[Any] = []
    structural.structural_walk(value, ((kind, found.append),), order="pre")
    return found
