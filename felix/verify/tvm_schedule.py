"""What a schedule that TVM made shows, read from its module: loops, launches, buffers, terms.

This is the other side of the comparison in `felix.verify.compare`: nothing here knows how Felix
interprets a schedule. A `Stage` is one leaf block with the loops around it; sizes of buffers are
those TVM's own passes give.

Notation
    site    the loops around the place where TVM allocates a buffer, outermost first
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir import transform

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir

PRAGMA_STEP = "pragma_auto_unroll_max_step"
PIPELINE = "software_pipeline_stage"
_KINDS = {
    int(tirx.ForKind.SERIAL): "serial",
    int(tirx.ForKind.PARALLEL): "parallel",
    int(tirx.ForKind.VECTORIZED): "vectorized",
    int(tirx.ForKind.UNROLLED): "unrolled",
    int(tirx.ForKind.THREAD_BINDING): "thread",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """One loop: `thread` is the axis of a bound one, `unroll_step` its pragma if it has one."""

    kind: str
    extent: int
    thread: str | None = None
    unroll_step: int | None = None
    pipelined: bool = False


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A leaf block: the loops around it, its tree of the root block."""

    name: str
    loops: tuple[Loop, ...]
    variables: tuple[Any, ...]
    tree: int
    realize: Any

    @property
    def stores(self) -> list[Any]:
        """Its stores, more than one of a tuple reduction."""
        return _buffer_stores(self.realize.block.body)

    @property
    def inits(self) -> list[Any]:
        """What its stores begin with, if they are those of a reduction."""
        init = self.realize.block.init
        return [] if init is None else _buffer_stores(init)

    @property
    def values(self) -> list[Any]:
        """Values that it stores or binds."""
        body = self.realize.block.body
        parts = body.seq if isinstance(body, tirx.SeqStmt) else [body]
        return [part.value for part in (*parts, *self.inits)]


@dataclasses.dataclass(frozen=True, slots=True)
class Allocated:
    """An intermediate buffer after TVM's compaction."""

    scope: str
    shape: tuple[int, ...]
    element_bytes: int
    site: tuple[Loop, ...]
    tree: int

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.element_bytes


# ---------------------------------------------------------------- walking


def _buffer_stores(body: Any) -> list[Any]:
    parts = body.seq if isinstance(body, tirx.SeqStmt) else [body]
    return [part for part in parts if isinstance(part, tirx.BufferStore)]


def stages(module: tvm.IRModule) -> list[Stage]:
    """Every leaf block of a scheduled module, in program order."""
    root = module["main"].body.block
    trees = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    return [s for i, tree in enumerate(trees) for s in _stages(tree, (), (), i)]


def _stages(
    node: Any, loops: tuple[Loop, ...], variables: tuple[Any, ...], tree: int
) -> Iterator[Stage]:
    if isinstance(node, tirx.SeqStmt):
        for child in node.seq:
            yield from _stages(child, loops, variables, tree)
    elif isinstance(node, tirx.For):
        yield from _stages(node.body, (*loops, _loop(node)), (*variables, node.loop_var), tree)
    elif isinstance(node, s_stmt.SBlockRealize):
        yield Stage(str(node.block.name_hint), loops, variables, tree, node)
    else:
        raise UnsupportedSchedule(f"statement {type(node).__name__} in a scheduled module")


def _loop(node: Any) -> Loop:
    kind = _KINDS[int(node.kind)]
    step = node.annotations.get(PRAGMA_STEP)
    thread = str(node.thread_binding.thread_tag) if kind == "thread" else None
    pipelined = PIPELINE in node.annotations
    return Loop(kind, int(node.extent), thread, None if step is None else int(step), pipelined)


def distinct(loops: Sequence[Loop]) -> list[tuple[int, Loop]]:
    """The loops with their depths, every thread axis once, at its innermost binding."""
    last = {lp.thread: i for i, lp in enumerate(loops) if lp.thread is not None}
    return [(i, lp) for i, lp in enumerate(loops) if lp.thread is None or last[lp.thread] == i]


def reduction_loops(stage: Stage) -> set[int]:
    """Depths of the loops bound to a reduction iterator of the block."""
    realize = stage.realize
    used = {
        v
        for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if int(iv.iter_type) == tirx.IterVar.CommReduce
        for v in variables(value)
    }
    return {i for i, v in enumerate(stage.variables) if v in used}


# ---------------------------------------------------------------- buffers


def labels(buffers: Iterable[Any]) -> dict[Any, str]:
    """Names unlike each other, of buffers in the order in which the program first stores to them.

    The order is the same in Felix's program and in all forms of TVM's.
    """
    result: dict[Any, str] = {}
    numbers: collections.Counter[str] = collections.Counter()
    for buffer in buffers:
        if buffer not in result:
            name = str(buffer.name)
            result[buffer] = ir.labelled(name, numbers[name])
            numbers[name] += 1
    return result


def labels_of(module: tvm.IRModule) -> dict[Any, str]:
    """The labels of the intermediate buffers of a scheduled module."""
    known = dict.fromkeys(module["main"].body.block.alloc_buffers)
    stored = (s.buffer for stage in stages(module) for s in stage.stores if s.buffer in known)
    return labels([*stored, *known])


def allocated(module: tvm.IRModule) -> dict[str, Allocated]:
    """The module's intermediate buffers as TVM places and compacts them, by label."""
    known = {str(b.name) for b in module["main"].body.block.alloc_buffers}
    return _allocations(_placed(module), known)


def versions(module: tvm.IRModule, compact: Mapping[str, Allocated]) -> dict[str, int]:
    """Copies of each buffer that InjectSoftwarePipeline keeps, for those in `compact`."""
    lowered = tvm.transform.Sequential(
        [
            transform.LowerCrossThreadReduction(),
            transform.LowerInitBlock(),
            transform.PlanAndUpdateBufferAllocationLocation(),
            transform.ConvertBlocksToOpaque(),
            transform.LiftThreadBinding(),
            transform.CompactBufferAllocation(),
            tirx.transform.StmtSimplify(),
            transform.UnifyThreadBinding(),
            transform.LowerMatchBuffer(),
            transform.InjectSoftwarePipeline(),
        ]
    )(module)
    known = {str(b.name) for b in module["main"].body.block.alloc_buffers}
    return {
        label: buffer.size_bytes // compact[label].size_bytes
        for label, buffer in _allocations(lowered, known).items()
        if label in compact
    }


def is_pipelined(stages: Sequence[Stage]) -> bool:
    """Whether a loop carries a software pipeline annotation."""
    return any(lp.pipelined for stage in stages for lp in stage.loops)


def _placed(module: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential(
        [
            transform.LowerCrossThreadReduction(),
            transform.LowerInitBlock(),
            transform.PlanAndUpdateBufferAllocationLocation(),
            transform.ConvertBlocksToOpaque(),
            transform.CompactBufferAllocation(),
        ]
    )(module)


def _allocations(module: tvm.IRModule, known: Collection[str]) -> dict[str, Allocated]:
    """What a module allocates under a name of `known`, by label."""
    entries: dict[Any, Allocated] = {}
    stored: list[Any] = []

    def visit(node: Any, loops: tuple[Loop, ...], tree: int) -> None:
        if isinstance(node, tirx.SeqStmt):
            for i, child in enumerate(node.seq):
                visit(child, loops, i if tree < 0 else tree)
        elif isinstance(node, tirx.For):
            visit(node.body, (*loops, _loop(node)), max(tree, 0))
        elif isinstance(node, s_stmt.SBlockRealize):
            for buffer in node.block.alloc_buffers:
                shape = tuple(int(x) for x in buffer.shape)
                size = max(1, (tvm.DataType(str(buffer.dtype)).bits + 7) // 8)
                entries[buffer] = Allocated(str(buffer.scope()), shape, size, loops, tree)
            visit(node.block.body, loops, tree)
        elif isinstance(node, tirx.BufferStore):
            stored.append(node.buffer)
        elif hasattr(node, "then_case"):
            visit(node.then_case, loops, tree)
            if node.else_case is not None:
                visit(node.else_case, loops, tree)
        elif hasattr(node, "body"):
            visit(node.body, loops, tree)

    visit(module["main"].body, (), -1)
    named = labels(b for b in [*stored, *entries] if b in entries and str(b.name) in known)
    return {label: entries[buffer] for buffer, label in named.items()}


def walk(node: Any) -> Iterator[Any]:
    """All nodes of an expression, parents first; indices of loads included."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Any) -> list[Any]:
    """Operands of an expression node."""
    if isinstance(node, TensorLoad):
        return list(node.indices)
    if isinstance(node, Call):
        return list(node.args)
    if isinstance(node, tirx.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, tirx.Cast):
        return [node.value]
    if isinstance(node, (tirx.Not, tirx.BitwiseNot)):
        return [node.a]
    return [node.a, node.b] if type(node) in _OPERATIONS or hasattr(node, "b") else []


def variables(node: Any) -> list[Any]:
    """Distinct variables of an expression, in order of first use."""
    return list(dict.fromkeys(n for n in walk(node) if isinstance(n, tirx.Var)))


_OPERATIONS: dict[type[Any], Any] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    tirx.Mod: np.fmod,
    tirx.Not: np.logical_not,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
    tirx.Select: np.where,
}


def _quotient(node: Any, a: Any, b: Any) -> Any:
    """a / b, of integers towards 0."""
    return np.trunc(a / b).astype(np.int64) if is_integer(node) else a / b


def is_integer(node: Any) -> bool:
    return str(node.ty).startswith(("int", "uint"))


#: Functions of one float; an index rounds as C does, halves away from 0.
_FUNCTIONS: dict[str, Any] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": lambda value: np.copysign(np.floor(np.abs(value) + 0.5), value),
    "likely": np.asarray,
    "if_then_else": np.where,
}


def evaluate(node: Any, grid: Mapping[Any, NDArray[np.int64]]) -> Any:
    """A TIR expression of an index or a condition over arrays of loop variables."""
    if isinstance(node, (int, bool)):
        return np.asarray(node)
    if isinstance(node, tirx.IntImm):
        return np.asarray(int(node.value))
    if isinstance(node, tirx.Var):
        return grid[node]
    if isinstance(node, tirx.FloatImm):
        return np.asarray(float(node.value), dtype=np.float32)
    if isinstance(node, tirx.Cast):
        value = evaluate(node.value, grid)
        return np.trunc(value).astype(np.int64) if is_integer(node) else value.astype(np.float32)
    operands = [evaluate(child, grid) for child in children(node)]
    if isinstance(node, tirx.Div):
        return _quotient(node, *operands)
    operation = _OPERATIONS.get(type(node))
    if isinstance(node, Call):
        operation = _FUNCTIONS.get(str(node.op.name).rpartition(".")[2])
    if operation is None:
        raise UnsupportedSchedule(f"index expression {node} cannot be enumerated")
    return operation(*operands)
