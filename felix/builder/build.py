"""From a scheduled module to a file that another process can run.

A module and its target (`payload`) become a shared library, or LLVM IR where there is no linker.
For CUDA, `cuda.build` makes a cubin instead, and `module` what TVM would build.

Where the time goes for a 512^3 GEMM candidate on `llvm`: reading the module 2 ms, lowering
and LLVM's passes 25 to 450 ms, machine code 25 to 600 ms, then `ld` 3 ms (`gcc` as a driver
10 to 25 ms) and loading 0.2 ms. TVM's JIT takes as long for machine code as writing an object
file does, and would take it in the run worker, where nothing else may run meanwhile. So:
object file and `ld`; else a compiler driver; else LLVM IR, which the run worker compiles.
"""

from __future__ import annotations

import enum
import math
import os
import platform
import shutil
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm.support import cc

from felix import target as targets
from felix.builder import payload as payloads
from felix.builder import preparation, task_program
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import embedded, launches, tvm_module
from felix.builder.cuda import reference as cuda_reference
from felix.processes import foreign
from felix.runner import description, protocol
from felix.runner.checking import reference
from felix.runner.description import Description
from felix.templates.generated import GeneratedProgram, Program

if TYPE_CHECKING:
    from felix.task import Task


class Link(enum.StrEnum):
    """How a build becomes loadable."""

    #: The linker itself.
    LD = "ld"
    #: A C compiler as the linker's driver.
    CC = "cc"
    #: No linker: LLVM IR, compiled by the process that runs it.
    JIT = "jit"


def handle(payload: str, stem: str) -> dict[str, Any]:
    """The `build` verb: `payload` holds module and target; the result goes to `stem` + suffix."""
    program = payloads.read_tir(payload)
    return {"library": build(program.mod, program.target, stem)}


def build(mod: tvm.IRModule, target: tvm.target.Target, stem: str) -> str:
    """Compile `mod` for a target; returns and raises as `linked`."""
    return linked(module(mod, target), target, stem)


def linked(library: tvm.runtime.Module, target: tvm.target.Target, stem: str) -> str:
    """Write what was compiled for a target; returns the path: `stem` + ".so" or ".ll".

    Raises:
        ValueError: a module with device code and no linker; or no linker for another machine.
    """
    machine, packing = foreign_machine(target), _packing(target)
    if machine is not None:
        ld = cross_linker(machine)
        _export(library, stem + ".so", lambda out, objects: _ld(out, objects, ld, []), {})
        return stem + ".so"
    link = available_link()
    if link is Link.JIT:
        if len(library.imports):
            raise ValueError("device code needs a linker: install binutils or a C compiler")
        library.write_to_file(stem + ".ll")
        return stem + ".ll"
    _export(library, stem + ".so", _ld_here if link is Link.LD else None, packing)
    return stem + ".so"


def foreign_machine(target: tvm.target.Target) -> str | None:
    """The machine of a CPU target's triple if it is not this one, like "aarch64"."""
    machine = str(target.attrs.get("mtriple", "")).partition("-")[0]
    is_here = not machine or machine == platform.machine()
    return machine if target.kind.name == "llvm" and not is_here else None


def cross_linker(machine: str) -> str:
    """A linker for another machine's programs; ValueError if there is none here."""
    names = (f"{machine}-linux-gnu-ld", "ld.lld")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise ValueError(
            f"no linker for {machine} here: install lld or "
            f"binutils-{machine.replace('_', '-')}-linux-gnu"
        )
    return found


def _export(
    library: Any, path: str, linker: Callable[..., None] | None, packing: Mapping[str, Any]
) -> None:
    """Write a shared library by a linker; None: by a C compiler."""
    how = {"options": ["-lm"]} if linker is None else {"fcompile": linker}
    with tempfile.TemporaryDirectory() as objects:
        library.export_library(path, workspace_dir=objects, **how, **packing)


def export_executable(
    built: Any, path: str, target: tvm.target.Target, cubins: Mapping[str, bytes]
) -> None:
    """Write a compiled network (`relax.VMExecutable`) as a shared library.

    Args:
        built: the network.
        path: of the library.
        target: what it was compiled for.
        cubins: of generated programs, by the names of their kernels (`tvm_module.cubins`).

    Raises:
        ValueError: there is no linker.
        CompileError: NVRTC refuses a kernel.
        MeasureError: there is no GPU's driver here, and no NVRTC either.
    """
    link = available_link()
    if link is Link.JIT:
        raise ValueError("a network's library needs a linker: install binutils or a C compiler")
    _export(built, path, _ld_here if link is Link.LD else None, _packing(target, cubins))


def _packing(
    target: tvm.target.Target, cubins: Mapping[str, bytes] = types.MappingProxyType({})
) -> dict[str, Any]:
    """How a library gets its kernels, as keyword arguments of `export_library`."""
    if target.kind.name != "cuda" or not embedded.is_needed():
        return {}

    def cubin_of(names: list[str], source: str) -> bytes:
        known = cubins.get(names[0])
        return cuda_build.cubin(source, target) if known is None else known

    return {"fpack_imports": embedded.packer(cubin_of)}


def module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """Compile `mod` as it is measured.

    Raises:
        MeasureError: for a GPU, and NVRTC or headers are missing here (`cuda.build.module`).
    """
    compile_ = cuda_build.module if target.kind.name == "cuda" else tvm.tirx.build
    return compile_(prepared(mod, target), target)


def prepared(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """What TVM compiles of a scheduled module."""
    return launches.PREPARED(mod) if target.kind.name == "cuda" else preparation.prepared(mod)


def module_of_task(program: Program, task: Task) -> tvm.runtime.Module:
    """Compile a program of a task, scheduled or generated: "main" takes the task's tensors.

    Raises:
        MeasureError: for a GPU, and NVRTC or headers are missing here; or the program is
            generated, and TVM finds no GPU's driver (`cuda.tvm_module.module`).
    """
    if isinstance(program, GeneratedProgram):
        return tvm_module.module(program, task.mod, task.target)
    return module(program, task.target)


def pass_config(target: tvm.target.Target) -> dict[str, bool]:
    """The `config` of TVM's PassContext under which a schedule becomes what was measured."""
    return dict(cuda_build.ASYNC_COPIES) if target.kind.name == "cuda" else {}


def available_link() -> Link:
    """The first of the ways that this machine has."""
    if shutil.which("ld"):
        return Link.LD
    return Link.CC if cc.get_cc() else Link.JIT


def math_library() -> list[str]:
    """Path of the C library's mathematics in this process, if it is a file of its own.

    Libraries that name it bind to its current functions. Without a name, glibc gives them the
    oldest ones it keeps, which are slower: `expf` took 1.5 times as long.
    """
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libm" in line}
    except OSError:
        return []
    return sorted(p for p in paths if os.path.basename(p).startswith(("libm.so", "libm-")))[:1]


def _ld_here(output: str, objects: list[str]) -> None:
    _ld(output, objects, "ld", math_library())


def _ld(output: str, objects: list[str], linker: str, libraries: list[str]) -> None:
    command = [linker, "-shared", "-z", "noexecstack", "-o", output, *objects, *libraries]
    foreign.run(command)


# The `reference` verb of a builder: a task's description and its reference, for run workers.
#
# The reference is the task's unscheduled program, for a GPU under the default schedule. What has
# no such form for a GPU (`cuda.reference`) is computed here, and its outputs are the reference.

#: Of all expected outputs that a builder computes.
MAX_OUTPUT_BYTES = 256_000_000


def handle_reference(payload: str, stem: str, seed: int) -> dict[str, Any]:
    """The verb: the reference goes to `stem` + suffix."""
    program = payloads.read_tir(payload)
    task = describe(program.mod, program.target, seed)
    if task.device == "cuda":
        library = _for_gpu(program.mod, program.target, task, stem)
    else:
        cpu = task_program.cpu_target(program.target)
        compiled = tvm.tirx.build(task_program.for_cpu(program.mod), cpu)
        library = linked(compiled, cpu, stem)  # as it is, so that it checks what Felix writes out
    return {"description": task.to_json(), "library": library}


def describe(mod: tvm.IRModule, target: tvm.target.Target, seed: int) -> Description:
    """What run workers of a target need to know of a program; its inputs are those of a seed."""
    is_gpu = target.kind.name == "cuda"
    tolerance = cuda_reference.tolerance if is_gpu else task_program.tolerance
    return Description(
        device="cuda" if is_gpu else "cpu",
        target=str(target.attrs["arch"]) if is_gpu else targets.describe(target),
        arguments=task_program.arguments(mod),
        tolerance=tolerance(mod),
        seed=seed,
    )


def _for_gpu(mod: tvm.IRModule, target: tvm.target.Target, task: Description, stem: str) -> str:
    """Write the reference for a GPU: a program if there is one, else its outputs; the path."""
    program = cuda_reference.program(mod, target)
    if program is not None:
        description.write_program(stem + ".cubin", *program)
        return stem + ".cubin"
    _check_size(task.arguments)
    run = task_program.on_cpu(mod, target, task.arguments)
    path = stem + protocol.OUTPUTS
    reference.write_expected(path, reference.compute(run, task.arguments, task.seed))
    return path


def _check_size(args: Sequence[reference.Argument]) -> None:
    """Refuse outputs that are too large to be sent; ValueError."""
    n_bytes = sum(
        math.prod(arg.shape) * reference.np_dtype(arg.dtype).itemsize
        for arg in args
        if arg.is_output
    )
    if n_bytes > MAX_OUTPUT_BYTES:
        raise ValueError(
            f"its outputs are computed by a builder, and {n_bytes / 1e6:.0f} MB are more than the "
            f"{MAX_OUTPUT_BYTES / 1e6:.0f} MB that go to a run worker"
        )
