"""The reference a candidate is compared with: inputs, expected outputs, tolerance.

The expected outputs are those of the unscheduled program. An element is right within a relative
tolerance t: |output - expected| <= t * (|expected| + rms(expected)).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural

Array = NDArray[Any]

_POISON_BYTE = 0x5A
#: Iterator type of a reduction axis of a block.
_REDUCTION = 2
#: A last output loop shorter than this stays where it is: moving it in gives no vectors.
_MIN_INNER_EXTENT = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One tensor parameter of a program: what it holds before a run and whether it is output.

    `index_bound` is the exclusive upper bound of values used as an index, if they are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_input: bool
    is_output: bool
    index_bound: int | None = None


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
            )
        )
    return tuple(parameters)


def inputs(args: Sequence[Argument], seed: int, *, positive: bool) -> list[Array]:
    """Initial contents of every argument: random inputs, poisoned outputs."""
    return [
        _random(arg, np.random.default_rng([seed, index]), positive)
        if arg.is_input
        else poison(arg)
        for index, arg in enumerate(args)
    ]


def poison(arg: Argument) -> Array:
    """An output no kernel has written: NaN, or all bytes 0x5A for integers."""
    dtype = np_dtype(arg.dtype)
    if is_float(arg.dtype):
        return np.full(arg.shape, np.nan, dtype=dtype)
    if dtype == np.bool_:
        return np.zeros(arg.shape, dtype=dtype)
    array = np.empty(arg.shape, dtype=dtype)
    array.view(np.uint8).fill(_POISON_BYTE)
    return array


def np_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a TVM dtype name; bfloat16 and fp8 come from ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def is_float(dtype: str) -> bool:
    """Whether a TVM dtype name is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def tolerance(mod: tvm.IRModule) -> float:
    """The relative tolerance t of the module docstring for one program."""
    func = mod["main"]
    dtypes = {str(region.source.dtype) for b in leaf_blocks(func) for region in b.writes}
    floats = [dtype for dtype in dtypes if is_float(dtype)]
    if not floats:
        return 0.0
    finfo: Any = ml_dtypes.finfo
    eps = max(float(finfo(np_dtype(dtype)).eps) for dtype in floats)
    base = 32.0 if eps < 1e-4 else 4.0
    return eps * (base + 2.0 * math.sqrt(reduction_length(mod)))


def reduction_length(mod: tvm.IRModule) -> int:
    """Terms in the longest reduction of a program; 1 when there is none."""
    lengths = [
        math.prod(int(v.dom.extent) for v in block.iter_vars if v.iter_type == _REDUCTION)
        for block in leaf_blocks(mod["main"])
    ]
    return max(lengths, default=1)


def mismatch(actual: Array, expected: Array, relative: float) -> str | None:
    """None if `actual` equals `expected` within tolerance, else what differs, in words."""
    if not is_float(expected.dtype.name):
        wrong = actual != expected
    else:
        wide = np.float64 if expected.dtype.itemsize > 4 else np.float32
        actual, expected = actual.astype(wide, copy=False), expected.astype(wide, copy=False)
        finite = np.isfinite(expected)
        with np.errstate(invalid="ignore", over="ignore"):
            close = np.abs(actual - expected) <= relative * (np.abs(expected) + rms(expected))
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        wrong = ~np.where(finite, close, same)
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return None
    where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    at = ", ".join(str(int(i)) for i in where)
    return (
        f"{count} of {wrong.size} elements differ from the reference: first at [{at}], "
        f"{actual[where]!s} instead of {expected[where]!s} (relative tolerance {relative:.1e})"
    )


def rms(expected: Array) -> float:
    """Root mean square of the finite elements of an expected output; 0 for no floats."""
    if not is_float(expected.dtype.name):
        return 0.0
    expected = expected.astype(
        np.float64 if expected.dtype.itemsize > 4 else np.float32, copy=False
    )
    finite = np.isfinite(expected)
    return math.sqrt(np.mean(np.square(expected, where=finite, out=np.zeros_like(expected))))


def outputs_on_cpu(
    mod: tvm.IRModule, target: tvm.target.Target, args: Sequence[Argument], seed: int
) -> tuple[dict[int, Array], bool]:
    """Expected outputs by argument index, and whether positive inputs were needed."""
    func = tvm.tirx.build(scheduled(mod), cpu_target(target))["main"]
    for positive in (False, True):
        tensors = [tvm.runtime.tensor(array) for array in inputs(args, seed, positive=positive)]
        func(*tensors)
        outputs = {i: tensors[i].numpy() for i, arg in enumerate(args) if arg.is_output}
        if all_finite(outputs, args):
            break
    return outputs, positive


def all_finite(outputs: Mapping[int, Array], args: Sequence[Argument]) -> bool:
    """Whether the outputs, by argument index, hold neither NaN nor infinity."""
    return all(
        bool(np.isfinite(output.astype(np.float64)).all())
        for i, output in outputs.items()
        if is_float(args[i].dtype)
    )


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
        try:
            _parallelise(sch, sch.get_sblock(block.name_hint))
        except s_tir.ScheduleError:
            continue
    return sch.mod


def _parallelise(sch: s_tir.Schedule, block: Any) -> None:
    loops = sch.get_loops(block)
    kinds = [v.iter_type for v in sch.get(block).iter_vars]
    if len(loops) != len(kinds):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != _REDUCTION]
    reduction = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    moved = (
        reduction and len(spatial) > 1 and int(sch.get(spatial[-1]).extent) >= _MIN_INNER_EXTENT
    )
    if moved:
        inner = spatial.pop()
        sch.reorder(*spatial, *reduction, inner)
    if spatial:
        sch.parallel(sch.fuse(*spatial))
    if moved:  # last: what is left of the block afterwards cannot be made parallel
        sch.decompose_reduction(block, reduction[0])


def _random(arg: Argument, rng: np.random.Generator, positive: bool) -> Array:
    dtype = np_dtype(arg.dtype)
    if is_float(arg.dtype):
        wide = np.float64 if dtype.itemsize > 4 else np.float32
        if positive:
            return (rng.random(arg.shape, dtype=wide) + wide(0.5)).astype(dtype, copy=False)
        return rng.standard_normal(arg.shape, dtype=wide).astype(dtype, copy=False)
    if dtype == np.bool_:
        return rng.integers(0, 2, arg.shape).astype(dtype)
    low, high = (0, 16) if dtype.kind == "u" else (-8, 8)
    if arg.index_bound is not None:
        low, high = 0, arg.index_bound
    return rng.integers(low, high, arg.shape).astype(dtype)


def leaf_blocks(func: Any) -> list[Any]:
    """Blocks that compute (the root block has no iterators), in program order."""
    blocks: list[Any] = []
    structural.structural_walk(func.body, ((s_tir.SBlock, blocks.append),), order="pre")
    return [block for block in blocks if len(block.iter_vars)] or blocks


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


def _contains(buffers: Sequence[Any], buffer: Any) -> bool:
    """Whether the same TVM object is among others."""
    return any(other.same_as(buffer) for other in buffers)
