"""What a task's program says of measuring it: its arguments, its tolerance, how it runs on a CPU.

The expected outputs of candidates are those of the unscheduled program. How far from them outputs
may be follows from types and lengths of sums (`rounding`).

On CPUs float32 takes the place of float8, which TVM's code for them converts wrongly (0 becomes
2^-7): values of float8 are only copied and converted, which float32 does exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural

from felix.builder import preparation
from felix.runner.checking import reference, rounding
from felix.runner.checking.reference import Argument
from felix.runner.cpu import runner as cpu_runner
from felix.tir import grammar, tf32

#: A last output loop shorter than this stays where it is: moving it in gives no vectors.
_MIN_INNER_EXTENT = 8
#: Rows that such a loop takes in turns: few enough for registers and caches.
_ROWS = 4
_BYTES = ("int8", "uint8")
#: Operations whose result in bytes depends on the device where it overflows.
_OVERFLOWING = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv)
#: Products of two bytes whose sum an int32 holds.
_MAX_SUM_OF_BYTES = 2**15


def arguments(mod: tvm.IRModule) -> tuple[Argument, ...]:
    """The tensor parameters of `mod["main"]` in order, with their roles."""
    func = mod["main"]
    infos = ms.arg_info.ArgInfo.from_prim_func(func)
    written: list[Any] = []
    read_first: list[Any] = []
    for block in leaf_blocks(func):
        for region in block.reads:
            if not _contains(written, region.source):
                read_first.append(region.source)
        written.extend(region.source for region in block.writes)
    bounds = _index_bounds(func)
    is_full_range = _holds_sums_of_bytes(func)
    dividing = _divisor_inputs(func)
    parameters = []
    for param, info in zip(func.params, infos, strict=True):
        is_output = _contains(written, param)
        parameters.append(
            Argument(
                name=str(param.name),
                dtype=str(info.dtype),
                shape=tuple(int(extent) for extent in info.shape),
                is_input=_contains(read_first, param) or not is_output,
                is_output=is_output,
                index_bound=bounds.get(param.name),
                is_full_range=is_full_range and str(info.dtype) in _BYTES,
                is_divisor=_contains(dividing, param) and str(info.dtype) != "bool",
            )
        )
    return tuple(parameters)


def tolerance(mod: tvm.IRModule) -> float:
    """The relative tolerance t of `reference` for one program; 0 for exact ones."""
    return rounding.tolerance(leaf_blocks(mod["main"]), tf32.allowed(mod["main"]))


def on_cpu(
    mod: tvm.IRModule, target: tvm.target.Target, args: Sequence[Argument]
) -> reference.Run:
    """The program on this CPU: from a seed and whether inputs are positive to its outputs."""
    return cpu_runner.run_of(tvm.tirx.build(for_cpu(mod), cpu_target(target))["main"], args)


def for_cpu(mod: tvm.IRModule) -> tvm.IRModule:
    """The program as it is compiled to be a reference on a CPU."""
    return preparation.guarded(scheduled(without_float8(mod)))


def without_float8(mod: tvm.IRModule) -> tvm.IRModule:
    """The program with float32 in place of float8; itself if it has no float8."""
    text = before = tvm.ir.save_json(mod)
    for dtype in grammar.STORAGE_DTYPES:
        text = text.replace(f'"{dtype}"', '"float32"')
    return mod if text == before else tvm.ir.load_json(text)


def cpu_target(target: tvm.target.Target) -> tvm.target.Target:
    """The CPU target that goes with a target."""
    if target.kind.name == "llvm":
        return target
    return target.host if target.host is not None else tvm.target.Target("llvm")


def calls(mod: tvm.IRModule) -> set[str]:
    """Names of the functions a program calls, without their dialect ("exp", "tanh")."""
    names: set[str] = set()

    def note(call: Any) -> None:
        names.add(str(getattr(call.op, "name", "")).rpartition(".")[2])

    structural.structural_walk(mod["main"].body, ((tvm.ir.Call, note),))
    return names


def scheduled(mod: tvm.IRModule) -> tvm.IRModule:
    """The unscheduled program with parallel output loops; sums keep their order.

    A block whose loops do not have the plain form stays as it is.
    """
    sch = s_tir.Schedule(mod, debug_mask="none")
    for block in leaf_blocks(mod["main"]):
        tried = sch.copy()
        try:
            _parallelise(tried, tried.get_sblock(block.name_hint))
        except s_tir.ScheduleError:
            continue
        sch = tried
    return sch.mod


def _parallelise(sch: s_tir.Schedule, block: Any) -> None:
    loops = sch.get_loops(block)
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    if len(loops) != len(kinds):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != grammar.REDUCE]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == grammar.REDUCE]
    moved = (
        reduction and len(spatial) > 1 and int(sch.get(spatial[-1]).extent) >= _MIN_INNER_EXTENT
    )
    if moved:
        inner = spatial.pop()
        if _walks_rows(sch.get(block), len(spatial)):
            outer, inner = sch.split(inner, [None, _ROWS])
            spatial.append(outer)
        sch.reorder(*spatial, *reduction, inner)
    if spatial:
        sch.parallel(sch.fuse(*spatial))
    if moved:  # last: what is left of the block afterwards cannot be made parallel
        sch.decompose_reduction(block, reduction[0])


def _walks_rows(block: Any, position: int) -> bool:
    """Whether each step along an output's axis, by its number, reads another row of a tensor.

    So it is with a matrix that is read transposed: a long axis needs as many lines of the cache.
    """
    axis = [v.var for v in block.iter_vars if v.iter_type != grammar.REDUCE][position]
    return any(
        _contains(tirx.analysis.undefined_vars(index.min), axis)
        for read in block.reads
        for index in read.region[:-1]
    )


def leaf_blocks(func: Any) -> list[Any]:
    """Blocks that compute (the root block has no iterators), in program order."""
    blocks: list[Any] = []
    structural.structural_walk(func.body, ((s_tir.SBlock, blocks.append),), order="pre")
    return [block for block in blocks if len(block.iter_vars)] or blocks


def _holds_sums_of_bytes(func: Any) -> bool:
    """Whether sums of products of any bytes fit int32, and bytes are widened before arithmetic.

    Float16 does not hold them.
    """
    if any(str(param.dtype) == "float16" for param in func.params):
        return False
    narrow: list[Any] = []

    def note(operation: Any) -> None:
        if str(operation.ty.dtype) in _BYTES:
            narrow.append(operation)

    rules = tuple((kind, note) for kind in _OVERFLOWING)
    structural.structural_walk(func.body, rules)
    longest = max(map(rounding.terms, leaf_blocks(func)), default=1)
    return not narrow and longest <= _MAX_SUM_OF_BYTES


def _index_bounds(func: Any) -> dict[str, int]:
    """Name of each integer tensor whose elements index another -> the indexed extent."""
    bounds: dict[str, int] = {}

    def note(tensor: Any, indices: Any) -> None:
        for index, extent in zip(indices, tensor.shape, strict=True):

            def inside(load: Any, extent: Any = extent) -> None:
                name = str(load.source.name)
                bounds[name] = min(bounds.get(name, int(extent)), int(extent))

            structural.structural_walk(index, ((tvm.ir.TensorLoad, inside),))

    structural.structural_walk(
        func.body,
        (
            (tvm.ir.TensorLoad, lambda load: note(load.source, load.indices)),
            (tvm.tirx.BufferStore, lambda store: note(store.buffer, store.indices)),
        ),
    )
    return bounds


def _divisor_inputs(func: Any) -> list[Any]:
    """The parameters that integers are divided by; all where other results are divisors."""
    read: list[Any] = []
    for divisor in preparation.divisors(func):
        structural.structural_walk(
            divisor, ((tvm.ir.TensorLoad, lambda load: read.append(load.source)),)
        )
    parameters = list(func.params)
    return read if all(_contains(parameters, each) for each in read) else parameters


def _contains(buffers: Sequence[Any], buffer: Any) -> bool:
    """Whether the same TVM object is among others."""
    return any(other.same_as(buffer) for other in buffers)
