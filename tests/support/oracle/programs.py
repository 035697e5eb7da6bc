"""Programs that TVM instantiated, as nests of axes around stores, and their enumeration.

The part of the oracle that reads TIR; `tests.support.oracle.features` counts features on it.
Nothing here knows how Felix's formulas are made.

Two programs describe one CPU schedule. The real one holds the loops TVM fused into a parallel and
a vectorized loop. The plain one is the same schedule with the fusion left out; footprints,
strides and reuse are defined on it. A block whose whole nest TVM fuses and splits into
[parallel, vectorized] is described on the real program. On a GPU both are one.

Notation
    axis    a loop of the plain program; a thread axis bound twice is one, at its inner place
    origin  the iteration where all axes are 0
    hull    per dimension, 1 + greatest - least index while some axes run and the others are 0
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import stmt as s_stmt

from felix.space.trace_sketch import TraceSketch
from tests.support.oracle import expressions

UNROLL = "pragma_auto_unroll_max_step"


@dataclasses.dataclass(eq=False)
class Axis:
    """One loop. `task`: its iterations are parallel tasks; `vector`: part of the vector loop."""

    variable: Any
    extent: int
    kind: str
    thread: str | None
    unroll: int | None
    notes: Any = None
    task: bool = False
    vector: bool = False
    #: variables of the outer bindings of the same thread axis
    other_variables: tuple[Any, ...] = ()
    #: position, in the loop's body, of the statement that has the nest
    child: int = 0


@dataclasses.dataclass(eq=False)
class Access:
    """One element access: `conditions` are (if_then_else condition, its required truth)."""

    buffer: Any
    indices: tuple[Any, ...]
    conditions: tuple[tuple[Any, bool], ...] = ()


@dataclasses.dataclass(eq=False)
class Nest:
    """One store and the loops around it.

    `place` is the position among its siblings at every level, the tree of the root block first.
    """

    name: str
    place: tuple[int, ...]
    axes: list[Axis]
    iterators: dict[Any, Any]
    reduce: list[Any]
    predicate: Any
    store: Any
    is_init: bool

    @functools.cached_property
    def foreign(self) -> list[Any]:
        """Loop variables in bindings and predicate that are not of its own axes."""
        of_axes = {v for a in self.axes for v in (a.variable, *a.other_variables)}
        return list(set(expressions.used([self.predicate, *self.iterators.values()])) - of_axes)

    @functools.cached_property
    def named(self) -> list[Any]:
        """Variables in the bindings of iterators, as often as they occur."""
        return expressions.used([*self.iterators.values()])

    @functools.cached_property
    def _enumerated(self) -> dict[tuple[int, ...], Points]:
        return {}

    def points(self, running: Sequence[Axis]) -> Points:
        """Iterations with these axes of the nest running, enumerated once."""
        key = tuple(id(a) for a in running if a.extent > 1)
        if key not in self._enumerated:
            self._enumerated[key] = Points(self, running)
        return self._enumerated[key]

    @property
    def tree(self) -> int:
        return self.place[0]

    @property
    def trip(self) -> int:
        return math.prod(a.extent for a in self.axes)

    def slots(self) -> list[tuple[Any, list[Access], bool, bool]]:
        """(buffer, accesses, read, written): the destination, then operands as loaded."""
        return self._slots

    @functools.cached_property
    def _slots(self) -> list[tuple[Any, list[Access], bool, bool]]:
        target = self.store.buffer
        slots = {target.name: (target, [Access(target, tuple(self.store.indices))], False, True)}
        for access in loads(self.store.value, ()):
            name = access.buffer.name
            buffer, accesses, _, written = slots.get(name, (access.buffer, [], True, False))
            slots[name] = (buffer, [*accesses, access], True, written)
        return list(slots.values())


# ---------------------------------------------------------------- programs


def described(sketch: TraceSketch, row: Sequence[int], real: s_tir.Schedule) -> list[Nest]:
    """The stores of the schedule on the loops their features are defined by."""
    true = nests(real.mod)
    if sketch.is_gpu:
        for nest in true:
            for axis in nest.axes:
                axis.task = (axis.thread or "").startswith("blockIdx")
                axis.vector = axis.kind == "vectorized"
        return true
    whole = whole_fused(real)
    plain = nests(_unfused(sketch, row).mod)
    assert [n.name for n in plain] == [n.name for n in true]
    result = []
    for mine, theirs in zip(plain, true, strict=True):
        for axis in theirs.axes:
            axis.task, axis.vector = axis.kind == "parallel", axis.kind == "vectorized"
        if mine.name in whole:
            result.append(theirs)
        else:
            _mark(mine, theirs)
            result.append(mine)
    return result


def _unfused(sketch: TraceSketch, row: Sequence[int]) -> s_tir.Schedule:
    schedule = sketch.apply(row)
    root = schedule.get_sblock("root")
    notes = schedule.get(root).annotations
    for key in ("meta_schedule.parallel", "meta_schedule.vectorize"):
        if key in notes:
            schedule.unannotate(root, key)
    sketch.postprocess(schedule)
    return schedule


def whole_fused(schedule: s_tir.Schedule) -> set[str]:
    """Blocks whose nest a CPU postprocessor fused as a whole and split again."""
    instructions = list(schedule.trace.insts)
    start = next(i for i, x in enumerate(instructions) if x.kind.name == "EnterPostproc")
    block_of: dict[Any, Any] = {}
    names = set()
    for inst in instructions[start:]:
        if inst.kind.name == "GetLoops":
            block_of.update(dict.fromkeys(inst.outputs, inst.inputs[0]))
        elif inst.kind.name == "Fuse":
            block_of.update(dict.fromkeys(inst.outputs, block_of[inst.inputs[0]]))
        elif inst.kind.name == "Split":
            names.add(str(schedule.get(block_of[inst.inputs[0]]).name_hint))
    return names


def _mark(plain: Nest, real: Nest) -> None:
    """Say which axes of the plain nest ended up in the parallel and the vectorized loop."""
    ours, theirs = [a.extent for a in plain.axes], [a.extent for a in real.axes]
    kinds = [a.kind for a in real.axes]
    parallel, vector = "parallel" in kinds[:1], "vectorized" in kinds[-1:]
    inner = theirs[int(parallel) : len(theirs) - int(vector)]
    for p in range(len(ours) + 1):
        v = len(ours) - len(inner) - p
        if (
            0 <= v
            and (p > 0) == parallel
            and (v > 0) == vector
            and ours[p : p + len(inner)] == inner
            and (not parallel or math.prod(ours[:p]) == theirs[0])
            and (not vector or math.prod(ours[p + len(inner) :]) == theirs[-1])
        ):
            for i, axis in enumerate(plain.axes):
                axis.task, axis.vector = i < p, i >= p + len(inner)
            return
    raise AssertionError(f"{plain.name}: {ours} cannot become {theirs}")


def nests(module: tvm.IRModule) -> list[Nest]:
    """Every store of a scheduled module in program order; a block's init comes before it."""
    root = module["main"].body.block.body
    return [n for leaf in leaves(root, [], ()) for n in _stores(*leaf)]


def leaves(
    node: Any, axes: list[Axis], place: tuple[int, ...]
) -> Iterator[tuple[list[Axis], tuple[int, ...], Any]]:
    """(loops, place, block realize) of every leaf block."""
    for i, child in enumerate(node.seq if isinstance(node, tirx.SeqStmt) else [node]):
        here = (*place, i)
        if isinstance(child, tirx.For):
            assert int(child.min) == 0
            yield from leaves(child.body, [*axes, make_axis(child)], here)
        else:
            assert isinstance(child, s_stmt.SBlockRealize), type(child)
            yield axes, here, child


def make_axis(loop: Any) -> Axis:
    kind = str(tirx.ForKind(int(loop.kind)).name).lower()
    thread = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else None
    step = loop.annotations.get(UNROLL)
    unroll = None if step is None else int(step)
    return Axis(loop.loop_var, int(loop.extent), kind, thread, unroll, loop.annotations)


def _stores(axes: list[Axis], place: tuple[int, ...], realize: Any) -> list[Nest]:
    block = realize.block
    bindings = dict(zip((iv.var for iv in block.iter_vars), realize.iter_values, strict=True))
    reduce = [bindings[iv.var] for iv in block.iter_vars if int(iv.iter_type) == 2]
    distinct: list[Axis] = []
    for axis, child in zip(axes, place[1:], strict=True):
        twice = [a for a in distinct if a.thread is not None and a.thread == axis.thread]
        distinct = [a for a in distinct if a not in twice]
        names = tuple(v for a in twice for v in (a.variable, *a.other_variables))
        distinct.append(dataclasses.replace(axis, other_variables=names, child=child))
    result = []
    if block.init is not None:
        feeding = expressions.used(reduce)
        spatial = [a for a in distinct if not any(v.same_as(a.variable) for v in feeding)]
        result += [
            Nest(
                f"{block.name_hint}_init",
                place,
                [dataclasses.replace(a) for a in spatial],
                bindings,
                [],
                realize.predicate,
                store,
                True,
            )
            for store in _unbound(block.init)
        ]
    is_init = str(block.name_hint).endswith("_init") and not reduce
    result += [
        Nest(
            str(block.name_hint),
            place,
            [dataclasses.replace(a) for a in distinct],
            bindings,
            reduce,
            realize.predicate,
            store,
            is_init,
        )
        for store in _unbound(block.body)
    ]
    return result


@dataclasses.dataclass(eq=False)
class _Store:
    """A store of a tuple reduction with the value that was bound for it."""

    buffer: Any
    indices: Any
    value: Any


def _unbound(body: Any) -> list[Any]:
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    values = {part.var: part.value for part in parts if isinstance(part, tirx.Bind)}
    stores = [part for part in parts if isinstance(part, tirx.BufferStore)]
    return [_Store(s.buffer, s.indices, values.get(s.value, s.value)) for s in stores]


def loads(node: Any, conditions: tuple[tuple[Any, bool], ...]) -> Iterator[Access]:
    """Loads of a value, operands before results, with the conditions they run under."""
    if expressions.is_if(node):
        test, then, other = node.args
        yield from loads(test, conditions)
        yield from loads(then, (*conditions, (test, True)))
        yield from loads(other, (*conditions, (test, False)))
        return
    for child in expressions.children(node):
        yield from loads(child, conditions)
    if isinstance(node, TensorLoad):
        yield Access(node.source, tuple(node.indices), conditions)
        for index in node.indices:
            yield from loads(index, conditions)


# ---------------------------------------------------------------- enumeration


class Points:
    """Iterations of a nest: the axes of `running` over their extents, all others at 0."""

    def __init__(self, nest: Nest, running: Sequence[Axis]) -> None:
        running = [a for a in running if a.extent > 1]
        self.shape = tuple(a.extent for a in running)
        env: dict[Any, np.ndarray] = {}
        for axis in nest.axes:
            value = np.zeros((1,) * max(1, len(running)), dtype=np.int64)
            for i, other in enumerate(running):
                if other is axis:
                    size = [1] * len(running)
                    size[i] = axis.extent
                    value = np.arange(axis.extent).reshape(size)
            env.update(dict.fromkeys((axis.variable, *axis.other_variables), value))
        for v in nest.foreign:
            env[v] = np.zeros((1,) * max(1, len(running)), dtype=np.int64)
        self.env = {v: expressions.evaluate(b, env) for v, b in nest.iterators.items()}
        self.shape = self.shape or (1,)
        self.passing = np.broadcast_to(
            np.asarray(expressions.evaluate(nest.predicate, env)).astype(bool), self.shape
        )

    def indices(self, access: Access) -> list[np.ndarray]:
        """Indices; one that depends on data is half its dimension from its neighbours."""
        pairs = zip(access.indices, access.buffer.shape, strict=True)
        return [np.broadcast_to(self._index(i, int(extent)), self.shape) for i, extent in pairs]

    def _index(self, index: Any, extent: int) -> np.ndarray:
        if not expressions.reads_data(index):
            return expressions.evaluate(index, self.env)
        places = [expressions.evaluate(part, self.env) for part in expressions.positions(index)]
        return np.asarray(sum(places) * max(1, extent // 2))

    def width(self, index: Any, extent: int) -> int:
        """Values between the least and the greatest, or as many as data can take."""
        if expressions.reads_data(index):
            return min(
                extent, math.prod(self.width(p, extent) for p in expressions.positions(index))
            )
        values = np.broadcast_to(expressions.evaluate(index, self.env), self.shape)[self.passing]
        return int(values.max() - values.min()) + 1

    def env_of(self, index: Any) -> np.ndarray:
        """An index that does not depend on data."""
        return expressions.evaluate(index, self.env)

    def executed(self, access: Access) -> np.ndarray:
        """Where the access happens."""
        happens = self.passing
        for condition, truth in access.conditions:
            happens = happens & expressions.can_hold(condition, truth, self.env)
        return happens

    def hull(self, accesses: Sequence[Access]) -> list[int]:
        """Per dimension the widest index range of any access, where the predicate passes."""
        widths = [
            [self.width(i, int(n)) for i, n in zip(a.indices, a.buffer.shape, strict=True)]
            for a in accesses
        ]
        return [max(w) for w in zip(*widths, strict=True)]


def distinct_elements(nest: Nest, accesses: Sequence[Access]) -> int:
    points = nest.points(nest.axes)
    shape = [int(extent) for extent in accesses[0].buffer.shape]
    is_touched = np.zeros(math.prod(shape), dtype=bool)
    if any(expressions.reads_data(i) for a in accesses for i in a.indices):
        total = sum(_gathered(points, access) for access in accesses)
        return total if len(accesses) == 1 else min(math.prod(shape), total)
    for access in accesses:
        flat = np.zeros(points.shape, dtype=np.int64)
        for index, extent in zip(points.indices(access), shape, strict=True):
            flat = flat * extent + index
        touched = flat[points.executed(access)]
        assert touched.size == 0 or touched.min() >= 0
        is_touched[touched] = True
    return int(is_touched.sum())


def _gathered(points: Points, access: Access) -> int:
    """min(table, visits), where nothing but iterators and data choose the element."""
    shape = [int(extent) for extent in access.buffer.shape]
    data = [i for i, index in enumerate(access.indices) if expressions.reads_data(index)]
    names = {
        v
        for index in access.indices
        for part in expressions.positions(index)
        for v in expressions.variables(part)
    }
    visits = _tuples([points.env[v] for v in sorted(names, key=str)], points)
    plain = [points.env_of(x) for i, x in enumerate(access.indices) if i not in data]
    return min(_tuples(plain, points) * math.prod(shape[i] for i in data), visits)


def _tuples(values: Sequence[np.ndarray], points: Points) -> int:
    """Distinct tuples of values over the iterations that pass."""
    if not values:
        return 1
    columns = [np.broadcast_to(value, points.shape)[points.passing] for value in values]
    return len(np.unique(np.stack(columns), axis=1).T)


def address(nest: Nest, access: Access, shape: Sequence[int], axis: Axis | None, at: int) -> int:
    """Row-major element offset of the access at one iteration."""
    running = [] if axis is None else [axis]
    points = nest.points(running)
    total = 0
    for index, extent in zip(points.indices(access), shape, strict=True):
        total = total * extent + int(index.reshape(-1)[at])
    return total
