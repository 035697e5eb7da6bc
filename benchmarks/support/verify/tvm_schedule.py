"""What a schedule that TVM made shows, read from its module: loops, launches, buffers, terms.

This is the other side of the comparison in `compare`: nothing here knows how Felix interprets a
schedule. A `Stage` is one leaf block with the loops around it; sizes of buffers are those that
TVM's own passes give.

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
from tvm import tirx
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir import transform

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir
from felix.tir import grammar

PRAGMA_STEP = "pragma_auto_unroll_max_step"
PIPELINE = "software_pipeline_stage"


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
    kind = tirx.ForKind(int(node.kind)).name.partition("_")[0].lower()
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
    passes = [*_placing(), transform.CompactBufferAllocation()]
    return _allocations(tvm.transform.Sequential(passes)(module), known)


def versions(module: tvm.IRModule, compact: Mapping[str, Allocated]) -> dict[str, int]:
    """Copies of each buffer that InjectSoftwarePipeline keeps, for those in `compact`."""
    lowered = tvm.transform.Sequential(
        [
            *_placing(),
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


def _placing() -> list[tvm.transform.Pass]:
    """TVM's passes up to where buffers have their places."""
    return [
        transform.LowerCrossThreadReduction(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
    ]


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
                size = grammar.element_bytes(str(buffer.dtype))
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


def variables(node: Any) -> list[Any]:
    """Distinct variables of an expression."""
    return list(dict.fromkeys(n for n in grammar.expressions(node) if isinstance(n, tirx.Var)))


def is_integer(node: Any) -> bool:
    """Whether an expression is of integers, and not a condition."""
    return str(node.ty).startswith(("int", "uint"))
