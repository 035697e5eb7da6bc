"""Check of the symbolic program against TVM: random legal decisions of every sketch of a task.

Of trace sketches: a template has no symbolic program and no schedule that TVM makes.

For each row of decisions three things are compared with the schedule that TVM instantiates:

structure   do `TraceSketch.concrete`'s blocks have the same names, order and loops (kind, extent,
            thread axis, unroll pragma), unit loops included?
buffers     do intermediate buffers have the same scope, allocation site and compacted shape as
            after TVM's LowerCrossThreadReduction, LowerInitBlock,
            PlanAndUpdateBufferAllocationLocation, ConvertBlocksToOpaque, CompactBufferAllocation?
features    do the formulas of the symbolic program, evaluated at the row, give the extents,
            launches, sizes and pragmas that the module shows?

A buffer dimension where TVM's size exceeds ours is not settled by either side: TVM's interval
arithmetic bounds `c // 6 * 4` by more than it can reach, so that it allocates 16 channels of a
grouped convolution where 4 are touched. What the program touches is then counted (`touched`). If
that is ours, the row is listed under `loose` (TVM allocates more than it uses) and not as a
mismatch; byte counts that include such a buffer are compared by the counted size.

Rows that TVM rejects are counted as `invalid`; there should be next to none.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tvm
from numpy.typing import NDArray

from benchmarks.support.verify import touched, tvm_schedule
from felix.errors import InvalidSchedule, UnsupportedSchedule
from felix.features import spec
from felix.symbolic import ir, kernels, parallelize
from felix.task import Task
from felix.tir.design_space import shared_memory

if TYPE_CHECKING:
    from felix.space.trace_sketch import TraceSketch

Kind = Literal["structure", "buffers", "features"]


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One disagreement: where, what TVM has and what Felix says."""

    sketch: int
    decisions: tuple[int, ...]
    kind: Kind
    where: str
    tvm: str
    felix: str


@dataclasses.dataclass(frozen=True, slots=True)
class Loose:
    """A buffer dimension that TVM allocates larger than any iteration reaches."""

    sketch: int
    decisions: tuple[int, ...]
    buffer: str
    dimension: int
    tvm: int
    felix: int


@dataclasses.dataclass(frozen=True, slots=True)
class SketchReport:
    """Result of one sketch; `checked` rows were compared, `invalid` ones TVM rejected.

    `left_out` says why a sketch has no formulas that could be compared.
    """

    index: int
    variant: str
    checked: int = 0
    invalid: int = 0
    mismatches: tuple[Mismatch, ...] = ()
    loose: tuple[Loose, ...] = ()
    left_out: str | None = None

    @property
    def mismatched(self) -> int:
        """Rows with at least one mismatch."""
        return len({m.decisions for m in self.mismatches})


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Results of all sketches of a task."""

    task: str
    target: str
    sketches: tuple[SketchReport, ...]

    @property
    def checked(self) -> int:
        """Rows compared with a schedule of TVM."""
        return sum(s.checked for s in self.sketches)

    @property
    def invalid(self) -> int:
        """Rows that TVM rejected."""
        return sum(s.invalid for s in self.sketches)

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Every disagreement."""
        return tuple(m for s in self.sketches for m in s.mismatches)

    @property
    def loose(self) -> tuple[Loose, ...]:
        """Every buffer dimension TVM allocates larger than any iteration reaches."""
        return tuple(x for s in self.sketches for x in s.loose)

    def to_json(self) -> str:
        """The report as JSON text: counts, then every mismatch and loose dimension."""
        return json.dumps(
            {
                "task": self.task,
                "target": self.target,
                "checked": self.checked,
                "invalid": self.invalid,
                "mismatches": len(self.mismatches),
                "loose": len(self.loose),
                "sketches": [dataclasses.asdict(s) for s in self.sketches],
            }
        )

    def lines(self, limit: int = 10) -> list[str]:
        """The report for people: a line per sketch, then at most `limit` mismatches."""
        text = [f"{self.task} on {self.target}: {len(self.sketches)} sketches"]
        for s in self.sketches:
            if s.left_out is not None:
                text.append(f"  sketch {s.index}, {s.variant}: left out: {s.left_out}")
                continue
            text.append(
                f"  sketch {s.index}, {s.variant}: {s.checked} rows compared, "
                f"{s.mismatched} mismatched, {s.invalid} rejected by TVM, "
                f"{len({x.decisions for x in s.loose})} with loose allocations"
            )
        for m in self.mismatches[:limit]:
            text.append(f"  {m.kind} of sketch {m.sketch} at {list(m.decisions)}: {m.where}")
            text += [f"    TVM    {m.tvm}", f"    Felix  {m.felix}"]
        hidden = len(self.mismatches) - limit
        return [*text, f"  and {hidden} more"] if hidden > 0 else text


Progress = Callable[[int, int], None]


def check(task: Task, n: int = 50, seed: int = 0, progress: Progress | None = None) -> Report:
    """Compare n random legal decisions of every trace sketch of the task with TVM's schedules.

    Generated kernels have no schedule of TVM; their formulas are compared with what they generate
    by the tests of each template.

    Args:
        n: rows per sketch.
        seed: of the rows; the same seed checks the same rows.
        progress: called with (sketches done, sketches in all).
    """
    from felix.space import sketch

    sketches = sketch.trace_sketches(task)
    reports = []
    for i, one in enumerate(sketches):
        reports.append(check_sketch(one, n, seed))
        if progress is not None:
            progress(i + 1, len(sketches))
    return Report(task.name, str(task.target.kind.name), tuple(reports))


def check_sketch(sketch: TraceSketch, n: int = 50, seed: int = 0) -> SketchReport:
    """Compare n random legal decisions of one sketch with TVM's schedules."""
    try:
        rows = sketch.sample(n, seed)
        sketch.formulas.raw(rows[:1])
    except InvalidSchedule:
        return SketchReport(sketch.index, str(sketch.variant))
    except UnsupportedSchedule as error:
        return SketchReport(sketch.index, str(sketch.variant), left_out=str(error))
    return check_rows(sketch, rows)


def check_rows(sketch: TraceSketch, rows: NDArray[np.int64]) -> SketchReport:
    """Compare these decisions [n, n_variables] of a sketch with TVM's schedules."""
    raw = sketch.formulas.raw(rows)
    mismatches: list[Mismatch] = []
    loose: list[Loose] = []
    invalid = 0
    for row, values in zip(rows, raw, strict=True):
        try:
            module = sketch.schedule(row).mod
        except InvalidSchedule:
            invalid += 1
            continue
        comparison = _Comparison(sketch, tuple(int(v) for v in row), module)
        comparison.run(values)
        mismatches += comparison.mismatches
        loose += comparison.loose
    return SketchReport(
        index=sketch.index,
        variant=str(sketch.variant),
        checked=len(rows) - invalid,
        invalid=invalid,
        mismatches=tuple(mismatches),
        loose=tuple(loose),
    )


class _Comparison:
    """One row of decisions: what TVM made of it against what Felix says."""

    def __init__(
        self, sketch: TraceSketch, decisions: tuple[int, ...], module: tvm.IRModule
    ) -> None:
        self.sketch = sketch
        self.decisions = decisions
        self.module = module
        self.stages = tvm_schedule.stages(module)
        self.allocated = tvm_schedule.allocated(module)
        self.buffer_labels = tvm_schedule.labels_of(module)
        pipelined = any(lp.pipelined for stage in self.stages for lp in stage.loops)
        self.versions = tvm_schedule.versions(module, self.allocated) if pipelined else {}
        self.mismatches: list[Mismatch] = []
        self.loose: list[Loose] = []

    def run(self, values: NDArray[np.float64]) -> None:
        """Structure, buffers, then features."""
        try:
            program = self.sketch.concrete(self.decisions)
        except UnsupportedSchedule as error:
            self._differ("structure", "interpretation", "a schedule", str(error))
            return
        labels = self._structure(program)
        self._buffers(program)
        self._features(values, labels)

    def _differ(self, kind: Kind, where: str, theirs: object, ours: object) -> None:
        self.mismatches.append(
            Mismatch(self.sketch.index, self.decisions, kind, where, str(theirs), str(ours))
        )

    # ------------------------------------------------------------ structure

    def _structure(self, program: ir.SymbolicProgram) -> list[str]:
        """Compare blocks and loops; the label of each of TVM's stages."""
        theirs = [(s.name, [_loop_text(lp) for lp in s.loops]) for s in self.stages]
        ours = [(b.name, [_loop_text(_plain(lp)) for lp in loops]) for loops, b in program.walk()]
        if [name for name, _ in theirs] != [name for name, _ in ours]:
            self._differ("structure", "blocks", [n for n, _ in theirs], [n for n, _ in ours])
            return [name for name, _ in theirs]
        for (name, a), (_, b) in zip(theirs, ours, strict=True):
            if a != b:
                self._differ("structure", name, " ".join(a), " ".join(b))
        return [block.label for _, block in program.walk()]

    # ------------------------------------------------------------ buffers

    def _buffers(self, program: ir.SymbolicProgram) -> None:
        allocations = {a.buffer: a for a in kernels.allocations(program)}
        stored = (target.buffer for _, b in program.walk() for target in b.writes)
        labels = tvm_schedule.labels(b for b in [*stored, *allocations] if b in allocations)
        modelled = {label: allocations[buffer] for buffer, label in labels.items()}
        if set(modelled) != set(self.allocated):
            self._differ("buffers", "names", sorted(self.allocated), sorted(modelled))
        for name in sorted(set(modelled) & set(self.allocated)):
            ours, theirs = modelled[name], self.allocated[name]
            our_place = (ours.buffer.scope, [_loop_text(_plain(lp)) for lp in ours.loops])
            their_place = (theirs.scope, [_loop_text(lp) for lp in theirs.site])
            if their_place != our_place:
                self._differ("buffers", name, their_place, our_place)
            self._shape(name, theirs, tuple(int(x) for x in ours.shape))

    def _shape(self, name: str, theirs: tvm_schedule.Allocated, ours: tuple[int, ...]) -> None:
        used_shape = list(theirs.shape)
        for d, (a, b) in enumerate(zip(theirs.shape, ours, strict=True)):
            if a > b and touched.count(self.module, name, d) == b:
                self.loose.append(Loose(self.sketch.index, self.decisions, name, d, a, b))
                used_shape[d] = b
            elif a != b:
                self._differ("buffers", f"{name} dimension {d}", theirs.shape, ours)
        self.allocated[name] = dataclasses.replace(theirs, shape=tuple(used_shape))

    # ------------------------------------------------------------ features

    def _features(self, values: NDArray[np.float64], labels: Sequence[str]) -> None:
        launches = self._launches()
        expected: dict[tuple[str, str], dict[str, int]] = {}
        for label, stage in zip(map(shared_memory.scope_blind, labels), self.stages, strict=True):
            for store in stage.inits:
                init = (f"{label}_init", _row_buffer(store))
                expected[init] = self._row(stage, store.buffer, launches, True)
            for store in stage.stores:
                name = (label, _row_buffer(store))
                expected[name] = self._row(stage, store.buffer, launches, False)
        column = {name: i for i, name in enumerate(spec.NAMES)}
        rows = self.sketch.formulas.rows
        for missing in sorted(set(expected) - {(r.block, r.buffer) for r in rows}):
            self._differ("features", "rows", missing, "absent")
        for r, row in enumerate(rows):
            theirs = expected.get((row.block, row.buffer))
            if theirs is None:
                if values[r].any():
                    self._differ("features", f"row {row.block}", "absent", "not all zero")
                continue
            for feature, value in theirs.items():
                ours = float(values[r, column[feature]])
                if ours != value:
                    self._differ("features", f"{feature} of {row.block}", value, ours)

    def _launches(self) -> dict[int, dict[str, int]]:
        """Kernel features of each tree of the root block."""
        axes: dict[int, dict[str, int]] = {}
        for stage in self.stages:
            extents = axes.setdefault(stage.tree, {})
            for lp in stage.loops:
                if lp.thread is not None:
                    extents.setdefault(lp.thread, lp.extent)
        shared = self._shared_bytes()
        result = {}
        for tree, extents in axes.items():
            vthreads = math.prod(e for a, e in extents.items() if a.startswith("vthread"))
            local = sum(
                b.size_bytes
                for b in self.allocated.values()
                if b.tree == tree and b.site and b.scope == "local"
            )
            result[tree] = {
                "grid_blocks": math.prod(
                    e for a, e in extents.items() if a.startswith("blockIdx")
                ),
                "block_threads": math.prod(
                    e for a, e in extents.items() if a.startswith("threadIdx")
                ),
                "vthreads": vthreads,
                "shared_bytes": shared.get(tree, 0),
                "local_bytes": local * vthreads,
            }
        return result

    def _shared_bytes(self) -> dict[int, int]:
        """Shared memory of each tree, all versions that a software pipeline keeps counted."""
        totals: dict[int, int] = {}
        for name, buffer in self.allocated.items():
            if buffer.site and buffer.scope.split(".")[0] == "shared":
                size = buffer.size_bytes * self.versions.get(name, 1)
                totals[buffer.tree] = totals.get(buffer.tree, 0) + size
        return totals

    def _row(
        self,
        stage: tvm_schedule.Stage,
        stored: Any,
        launches: dict[int, dict[str, int]],
        is_init: bool,
    ) -> dict[str, int]:
        reduced = tvm_schedule.reduction_loops(stage)
        loops = [
            lp for i, lp in tvm_schedule.distinct(stage.loops) if not (is_init and i in reduced)
        ]
        features = {
            "trip_count": math.prod(lp.extent for lp in loops),
            "parallel_extent": math.prod(lp.extent for lp in loops if lp.kind == "parallel"),
            "vector_extent": math.prod(lp.extent for lp in loops if lp.kind == "vectorized"),
            "unroll_step": next(
                (lp.unroll_step for lp in reversed(loops) if lp.unroll_step is not None), 0
            ),
            "serial_trips": math.prod(lp.extent for lp in loops if not _is_spread(lp)),
        }
        buffer = self.allocated.get(self.buffer_labels.get(stored, ""))
        if buffer is not None:
            features["alloc_bytes"] = buffer.size_bytes
            features["alloc_trips"] = math.prod(
                lp.extent for _, lp in tvm_schedule.distinct(buffer.site)
            )
        return features | launches[stage.tree]


def _row_buffer(store: Any) -> str:
    """Name of the buffer that a row of features is about."""
    return shared_memory.scope_blind(str(store.buffer.name))


def _is_spread(loop: tvm_schedule.Loop) -> bool:
    """Whether iterations of the loop run side by side: tasks, blocks, threads."""
    if loop.thread is not None:
        return not loop.thread.startswith("vthread")
    return loop.kind == "parallel"


def _plain(loop: ir.Loop) -> tvm_schedule.Loop:
    """A loop of a concrete program in the form of one read from TVM."""
    step = loop.annotations.get(parallelize.PRAGMA_STEP)
    return tvm_schedule.Loop(
        loop.kind, int(loop.extent), loop.thread, None if step is None else int(step)
    )


def _loop_text(loop: tvm_schedule.Loop) -> str:
    kind = loop.thread if loop.thread is not None else loop.kind
    step = "" if loop.unroll_step is None else f"/unroll{loop.unroll_step}"
    return f"{kind}:{loop.extent}{step}"
