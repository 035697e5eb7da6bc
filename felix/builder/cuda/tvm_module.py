"""A generated program as a module of TVM: its launches as host code, and its cubin.

The host function has the task's parameters, which TVM checks as those of any program. It takes
the workspaces as one, from TVM's pool or as a last parameter, encodes the tensor maps and launches
the kernels. TVM's runtime cannot encode im2col tensor maps: a function of this module does, and in
an artifact one of its `run.py`. TVM also wants device functions, from which it learns what the
arguments are: they have the kernels' names and no body, and TVM gets the cubin in place of what it
would compile of them.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from felix import errors, launch_plan
from felix.builder.cuda import build
from felix.builder.cuda import launches as plans
from felix.runner.cuda import driver, nvrtc
from felix.templates.generated import GeneratedProgram

_CLUSTER_AXES = ("clusterCtaIdx.x", "clusterCtaIdx.y", "clusterCtaIdx.z")
_DEVICE_KERNEL_LAUNCH = 2
#: Workspaces begin at multiples of this in their allocation.
_ALIGNMENT_BYTES = 256
#: The packed function by which host code encodes an im2col tensor map.
_ENCODE_IM2COL = "felix.encode_im2col_tensor_map"


def module(
    program: GeneratedProgram,
    task_mod: tvm.IRModule,
    target: tvm.target.Target,
    runs_here: bool = True,
    takes_workspace: bool = False,
) -> tvm.runtime.Module:
    """A module whose "main" takes the tensors of a task's program.

    One that does not run here has no code of its kernels where TVM finds no GPU's driver. With
    `takes_workspace` the last parameter is a tensor uint8 [`workspace_bytes`], if that is not 0.

    Raises:
        CompileError: NVRTC refuses the source.
        MeasureError: it is to run, and TVM cannot load CUDA code here; or there is no NVRTC or
            headers.
    """
    cubins: list[bytes] = []

    def compiled(code: str) -> bytes:
        cubins.append(build.cubin_of(program))
        return cubins[0]

    nvrtc.load()
    host = host_module(program.plan, task_mod, target, takes_workspace)
    with build.compiled_by(compiled):
        device = tvm.get_global_func("target.build.cuda")(
            device_module(program.plan, target), target
        )
    if not cubins and runs_here:
        raise errors.MeasureError(
            "a module with a generated kernel can be made only where TVM finds a GPU's driver"
        )
    host.import_module(device)
    return host


def with_prefix(program: GeneratedProgram, prefix: str) -> GeneratedProgram:
    """The program with kernels of longer names, for a library that has other programs, too.

    A library's host code finds kernels by name alone, among those of all modules it was made of.
    """
    source = program.source
    for kernel in {launch.kernel for launch in program.plan.launches}:
        definition = re.compile(rf"(__global__\s+void\s[^{{;]*?)\b{kernel}(\s*\()")
        source, count = definition.subn(rf"\g<1>{prefix}_{kernel}\g<2>", source)
        if count != 1:
            raise errors.MeasureError(f"{count} kernels of a program are named {kernel}")
    launches = tuple(
        dataclasses.replace(launch, kernel=f"{prefix}_{launch.kernel}")
        for launch in program.plan.launches
    )
    plan = dataclasses.replace(program.plan, launches=launches)
    return dataclasses.replace(program, source=source, plan=plan)


def cubins(program: GeneratedProgram) -> dict[str, bytes]:
    """The cubin of a program by the name of each kernel; raises as `build.cubin_of`."""
    return dict.fromkeys(
        (launch.kernel for launch in program.plan.launches), build.cubin_of(program)
    )


def host_module(
    plan: launch_plan.LaunchPlan,
    task_mod: tvm.IRModule,
    target: tvm.target.Target,
    takes_workspace: bool = False,
) -> tvm.runtime.Module:
    """The compiled host code alone."""
    # Also the name of a function in its package, so plain import statements find that.
    tvm_build: Any = importlib.import_module("tvm.tirx.build")
    host_target = target.host if target.host is not None else tvm.target.Target("llvm")
    mod = tvm.IRModule({"main": host_function(plan, task_mod["main"], takes_workspace)})
    pipeline, finalize, _ = tirx.get_default_tir_pipeline(target)
    bound = tirx.transform.BindTarget(target.with_host(host_target))(mod)
    host, _ = tvm_build.split_host_device_mods(pipeline(bound))
    return tvm_build.codegen_build(finalize()(host), host_target)


def workspace_bytes(plan: launch_plan.LaunchPlan) -> int:
    """Size of the memory that has all workspaces of a plan."""
    return _offsets(plan)[-2] + plan.workspaces[-1] if plan.workspaces else 0


def host_function(
    plan: launch_plan.LaunchPlan, task_func: tirx.PrimFunc, takes_workspace: bool = False
) -> tirx.PrimFunc:
    """A function with the parameters of a task's that does what a plan says (`module`)."""
    # One allocation: of several, TVM gives one the memory of another that only a tensor map
    # still reads, because it does not see which launches have the map.
    whole = tirx.decl_buffer((workspace_bytes(plan),), "uint8", "workspace")
    pointers = [buffer.data for buffer in task_func.params]
    pointers += [_moved(whole.data, offset) for offset in _offsets(plan)[:-1]]
    encodes: list[tirx.Stmt] = []
    launches: list[tirx.Stmt] = []
    for launch in plan.launches:
        args = []
        for arg in launch.args:
            if isinstance(arg, int):
                args.append(pointers[arg])
            else:
                args.append(_map_variable(f"map{len(encodes) // 2}"))
                encodes += _encode(args[-1], arg, pointers[arg.tensor])
        launches.append(_launch(launch, args, _tags(plan)))
    is_taken = bool(plan.workspaces) and takes_workspace
    allocations = [tirx.AllocBuffer(whole)] if plan.workspaces and not is_taken else []
    steps = [*allocations, *encodes, *launches]
    body = tirx.SeqStmt(steps) if len(steps) > 1 else steps[0]
    params = [*task_func.params, *([whole] if is_taken else [])]
    return tirx.PrimFunc(params, body, task_func.ret_type, task_func.attrs)


def _offsets(plan: launch_plan.LaunchPlan) -> list[int]:
    """Where each workspace of a plan begins, and where another one would."""
    return [0, *itertools.accumulate(map(_aligned, plan.workspaces))]


def device_module(plan: launch_plan.LaunchPlan, target: tvm.target.Target) -> tvm.IRModule:
    """Functions with the kernels' names and parameters, and without a body."""
    return tvm.IRModule(
        {launch.kernel: _declaration(launch, _tags(plan), target) for launch in plan.launches}
    )


def _declaration(
    launch: launch_plan.Launch, tags: Sequence[str], target: tvm.target.Target
) -> tirx.PrimFunc:
    pointer = tvm.ir.PointerType(tvm.ir.PrimType("uint8"), "global")
    params = [
        tvm.ir.Var(f"tensor{number}", pointer)
        if isinstance(arg, int)
        else _map_variable(f"map{number}")
        for number, arg in enumerate(launch.args)
    ]
    attributes = {
        "global_symbol": launch.kernel,
        "calling_conv": _DEVICE_KERNEL_LAUNCH,
        "target": target,
        "tirx.is_global_func": True,
        "tirx.kernel_launch_params": list(tags),
    }
    return tirx.PrimFunc(params, tirx.Evaluate(0)).with_attr(attributes)


def _tags(plan: launch_plan.LaunchPlan) -> tuple[str, ...]:
    """What the numbers after a launch's arguments are, the same for all launches of a plan."""
    has_clusters = any(extent > 1 for launch in plan.launches for extent in launch.cluster)
    return (*plans.AXES, *(_CLUSTER_AXES if has_clusters else ()), plans.DYNAMIC_SHARED)


def _launch(launch: launch_plan.Launch, args: Sequence[Any], tags: Sequence[str]) -> tirx.Stmt:
    cluster = launch.cluster if _CLUSTER_AXES[0] in tags else ()
    numbers = (*launch.extents, *cluster, launch.shared_bytes)
    call = tirx.call_ffi_kernel(launch.kernel, *args, *numbers, launch_params=list(tags))
    return tirx.Evaluate(call)


def _aligned(size_bytes: int) -> int:
    """A size after which the next workspace begins."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _moved(pointer: Any, offset_bytes: int) -> Any:
    """An address so many bytes behind another one."""
    if not offset_bytes:
        return pointer
    return tirx.call_intrin(pointer.ty, "tirx.handle_add_byte_offset", pointer, offset_bytes)


def _map_variable(name: str) -> tvm.ir.Var:
    return tvm.ir.Var(name, tvm.ir.PointerType(tirx.type.TensorMapType()))


def _encode(
    variable: tvm.ir.Var, tensor_map: launch_plan.TensorMap, pointer: Any
) -> list[tirx.Stmt]:
    """Room for a tensor map on the stack, and the call that fills it."""
    pointer = _moved(pointer, tensor_map.offset_bytes)
    room = tirx.Bind(variable, tirx.tvm_stack_alloca("tensormap", 1))
    if tensor_map.im2col is not None:
        text = json.dumps(dataclasses.asdict(tensor_map))
        return [room, tirx.Evaluate(tirx.call_packed(_ENCODE_IM2COL, variable, pointer, text))]
    rank = len(tensor_map.extents)
    call = tirx.tensormap_encode_tiled(
        variable,
        pointer,
        *tensor_map.extents,
        *tensor_map.strides_bytes,
        *tensor_map.box,
        *[1] * rank,
        rank=rank,
        descriptor_dtype=_element(tensor_map.dtype),
        interleave=driver.NO_INTERLEAVE,
        swizzle=driver.SWIZZLES[tensor_map.swizzle_bytes],
        l2_promotion=driver.PROMOTE_TO_128_BYTES,
        oob_fill=driver.ZEROS_OUTSIDE,
    )
    return [room, tirx.Evaluate(call)]


def _encode_im2col(descriptor: Any, pointer: Any, text: str) -> None:
    """Fill a descriptor as the driver does; TVM's runtime encodes maps of boxes alone."""
    driver.fill(descriptor, launch_plan.tensor_map_of(json.loads(text)), pointer)


tvm_ffi.register_global_func(_ENCODE_IM2COL, _encode_im2col, override=True)


def _element(dtype: str) -> str:
    """A dtype as a tensor map has it: integers and floats of a byte are bytes."""
    return "uint8" if tvm.DataType(dtype).itemsize == 1 else dtype
