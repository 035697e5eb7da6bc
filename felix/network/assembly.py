"""Putting tuned programs back: a lowered network whose calls run the programs that ship.

A scheduled module takes the place of its group's PrimFuncs, so it is compiled with the rest. A
generated kernel is a module of its own: the group's calls become calls of a packed function, as do
those of a group that PyTorch runs. What
ships is the program that was measured, not its trace applied again: a task's program has narrower
indices and sometimes other windows than the network's.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any, TypeAlias

import torch
import tvm
from tvm import relax, tirx

from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import tvm_module
from felix.network import executable, groups, imported
from felix.network.passes import intermediates, prepacking
from felix.target import cpu
from felix.task import Task
from felix.templates.generated import GeneratedProgram, Program
from felix.torch_calls.form import TorchForm, register

#: What a group runs; None: its PrimFunc as TVM schedules it.
Runs: TypeAlias = "Program | TorchForm | None"


@dataclasses.dataclass(frozen=True, slots=True)
class _Packed:
    """A packed function by its name, and the memory that it wants behind its results."""

    name: str
    workspace_bytes: int = 0


def assemble(
    lowered: tvm.IRModule, shipped: Sequence[tuple[groups.Group, Runs]], runs_here: bool = True
) -> tvm.IRModule:
    """The network with what ships in the place of each group's PrimFuncs.

    Args:
        lowered: the network.
        shipped: what groups run.
        runs_here: whether the network is to run in this process.

    Raises:
        MeasureError: a generated kernel cannot be compiled here.
    """
    compile_kernels(shipped)
    mod = lowered.clone()
    packed: dict[str, _Packed] = {}
    modules: dict[str, tvm.runtime.Module] = {}
    for group, runs in shipped:
        if isinstance(runs, GeneratedProgram):
            assert group.task is not None  # what was generated was generated for a task
            name = _name(runs, group.task)
            modules[name] = _module(runs, group.task, name, runs_here)
            function = _Packed(name, tvm_module.workspace_bytes(runs.plan))
            packed.update(dict.fromkeys(group.symbols, function))
        elif isinstance(runs, TorchForm):
            function = _Packed(register(runs))
            packed.update(dict.fromkeys(group.symbols, function))
        elif runs is not None:
            for symbol in group.symbols:
                _replace(mod, symbol, runs["main"])
    if packed:
        mod = _with_packed_calls(mod, packed)
    return mod.with_attr("external_mods", list(modules.values())) if modules else mod


def function_of(group: groups.Group, runs: Runs, symbol: str) -> str:
    """What the assembled network calls where it called a PrimFunc of a group."""
    if isinstance(runs, TorchForm):
        return runs.function_name
    if isinstance(runs, GeneratedProgram):
        assert group.task is not None  # what was generated was generated for a task
        return _name(runs, group.task)
    return symbol


def compile_kernels(shipped: Sequence[tuple[groups.Group, Runs]]) -> None:
    """Make the cubins of generated kernels, side by side; whatever has them then finds them on
    disk (`felix.builder.cuda.cubins`).

    Raises:
        CompileError: NVRTC refuses a kernel.
        MeasureError: there is no NVRTC here.
    """
    programs = _generated(shipped)
    if len(programs) < 2:
        return  # made where it is needed
    width = min(cuda_build.MAX_THREADS, len(programs), cpu.available_cores())
    with futures.ThreadPoolExecutor(width) as threads:
        list(threads.map(cuda_build.cubin_of, programs))


def _generated(shipped: Sequence[tuple[groups.Group, Runs]]) -> list[GeneratedProgram]:
    """The generated programs of a network, with the names that their kernels have in it."""
    return [
        tvm_module.with_prefix(runs, _name(runs, group.task))
        for group, runs in shipped
        if isinstance(runs, GeneratedProgram) and group.task is not None
    ]


def built(
    network: imported.Network, shipped: Sequence[tuple[groups.Group, Runs]]
) -> executable.Executable:
    """The network with what ships, compiled and loaded; raises as `assemble`."""
    mod = prepacking.prepack(assemble(network.lowered, shipped))
    return executable.build(mod, network.target, network.imported.parameters, is_fixed=True)


def untuned_outputs(
    network: imported.Network, inputs: Sequence[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """The outputs of a network as TVM builds it without tuning, on its examples if not on
    others."""
    return built(network, [])(list(network.examples if inputs is None else inputs))


def cubins(shipped: Sequence[tuple[groups.Group, Runs]]) -> dict[str, bytes]:
    """The cubins of the generated kernels of a network (`assemble`), by the kernels' names.

    Raises:
        CompileError: NVRTC refuses a kernel.
        MeasureError: there is no NVRTC here.
    """
    known: dict[str, bytes] = {}
    for program in _generated(shipped):
        known |= tvm_module.cubins(program)
    return known


def _name(program: GeneratedProgram, task: Task) -> str:
    """What the host function of a program is called, and its kernels' names begin with: the same
    in every network, so that it is compiled once."""
    digest = hashlib.sha256(f"{program.fingerprint} {task.key}".encode()).hexdigest()
    return f"felix_{digest[:16]}"


def _replace(mod: tvm.IRModule, symbol: str, program: tirx.PrimFunc) -> None:
    """Put a scheduled function in the place of a PrimFunc, under its name."""
    variable = mod.get_global_var(symbol)
    func = program.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
    mod.update_func(variable, func.with_attr("tirx.noalias", True))


def _module(
    program: GeneratedProgram, task: Task, name: str, runs_here: bool
) -> tvm.runtime.Module:
    """A generated kernel as a module whose function has this name."""
    named = tvm.IRModule({"main": task.func.with_attr("global_symbol", name)})
    return tvm_module.module(
        tvm_module.with_prefix(program, name), named, task.target, runs_here, takes_workspace=True
    )


def _with_packed_calls(mod: tvm.IRModule, packed: Mapping[str, _Packed]) -> tvm.IRModule:
    """The module with calls of these PrimFuncs made calls of packed functions, which get their
    outputs' memory."""

    def rewritten(builder: relax.BlockBuilder, symbol: str, call: relax.Call) -> Any:
        function = packed.get(symbol)
        if function is None:
            return call
        operands = call.args[1]
        if not function.workspace_bytes:
            return relax.call_dps_packed(function.name, operands, call.ty_args[0])
        results = intermediates.results_of(call)
        workspace = relax.TensorType([function.workspace_bytes], "uint8")
        wider = relax.call_dps_packed(function.name, operands, [*results, workspace])
        return intermediates.with_unread_results(builder, wider, len(results))

    # One program stays, called or not: a library without any machine code cannot be linked.
    return groups.with_calls(mod, rewritten, ["main", next(iter(packed))])
