"""What is known of a task after tuning, and which tasks are similar, with schedules of theirs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural

from felix.builder import payload
from felix.templates.generated import Program
from felix.tir import grammar

if TYPE_CHECKING:
    from felix.space.sketch import Sketch
    from felix.space.variables import Variable
    from felix.task import Task


@dataclasses.dataclass(frozen=True, slots=True)
class Decided:
    """A decision variable and its value: all that another sketch of the kind needs.

    `extent` is that of a tiled loop, None of a choice.
    """

    name: str
    extent: int | None
    group: int
    value: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Decisions of a sketch, and where they come from."""

    sketch_key: str
    sketch_index: int
    variant: str
    decisions: tuple[Decided, ...]

    @property
    def row(self) -> tuple[int, ...]:
        """The values of the variables, in order."""
        return tuple(each.value for each in self.decisions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownResult:
    """What tuning a task gave on a device.

    Attributes:
        tuned_us: latency of the best schedule or generated kernel; None if none ran.
        program: that program (`builder.payload`'s text); None with `tuned_us`.
        schedule: its decisions; None with `tuned_us`.
        default_us: latency of the program as TVM schedules it; None if it was not measured.
        failure: why there is no best schedule; None if there is one.
        n_trials: candidates that were measured.
    """

    tuned_us: float | None = None
    program: str | None = None
    schedule: Schedule | None = None
    default_us: float | None = None
    failure: str | None = None
    n_trials: int = 0

    def read_program(self) -> Program | None:
        """The program of `tuned_us`."""
        if self.program is None:
            return None
        stored = payload.read(self.program)
        return stored.mod if isinstance(stored, payload.TirProgram) else stored


def decided(variables: Sequence[Variable], row: Sequence[int]) -> tuple[Decided, ...]:
    """A row of decisions with what its variables are."""
    return tuple(
        Decided(variable.name, variable.extent, variable.group, int(value))
        for variable, value in zip(variables, row, strict=True)
    )


def family(task: Task) -> str:
    """Hash of a task's program without its extents: equal for one operator of several sizes."""
    func = task.func
    parts: list[str] = [str(task.target.kind.name)]
    parts += [f"{grammar.dtype(buffer)} {len(grammar.shape(buffer))}" for buffer in func.params]
    structural.structural_walk(
        func.body, ((tvm_ffi.Object, lambda node: parts.append(_kind(node))),)
    )
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _kind(node: Any) -> str:
    """What a node of a program is, whatever its numbers and names.

    A number may stand where another size has a variable: an operand is broadcast along a batch of
    16, and indexed as the result is along a batch of 1.
    """
    if isinstance(node, (tirx.Var, tirx.IntImm)):
        return "index"
    if isinstance(node, tvm.ir.Call):
        operator = node.op.name if isinstance(node.op, tvm.ir.Op) else "function"
        return f"call {operator}"
    if isinstance(node, tirx.IterVar):
        return f"iterator {int(node.iter_type)}"
    return type(node).__name__


# Schedules of a similar task as first candidates: its decisions, moved to other extents.
#
# A loop of another extent keeps its inner factors, which fit caches and vectors, and its
# outermost factor takes up the difference; then the nearest legal tilings are taken
# (`search.rounding`).

#: Legal schedules nearest to each known one.
NEAREST = 2


def first_schedules(
    known: Iterable[KnownResult], sketches: Sequence[Sketch]
) -> list[tuple[str, Sequence[int]]]:
    """(sketch key, decisions) to measure first, from what is known of similar tasks.

    A schedule of a sketch that is here is taken as it is; another one is adapted to the sketch
    with the same number, variant and variables, if there is one.
    """
    schedules: list[tuple[str, Sequence[int]]] = []
    for result in known:
        if result.schedule is None:
            continue
        for sketch in sketches:
            if sketch.key == result.schedule.sketch_key:
                schedules.append((sketch.key, result.schedule.row))
            elif _is_alike(sketch, result.schedule):
                rows = _nearest(sketch, result.schedule)
                schedules += [(sketch.key, row) for row in rows]
    return schedules


def _is_alike(sketch: Sketch, schedule: Schedule) -> bool:
    names = [variable.name for variable in sketch.variables]
    return (
        sketch.index == schedule.sketch_index
        and str(sketch.variant) == schedule.variant
        and names == [each.name for each in schedule.decisions]
    )


def _nearest(sketch: Sketch, schedule: Schedule) -> list[tuple[int, ...]]:
    """Legal rows of decisions of a sketch that are nearest to those of another one."""
    from felix.search import rounding  # loads torch, which who reads what is known may not have

    values = np.asarray([float(each.value) for each in schedule.decisions])
    for position, variable in enumerate(sketch.variables):
        known = schedule.decisions[position]
        if variable.extent is not None and known.extent is not None and variable.part == 0:
            values[position] *= variable.extent / known.extent
        elif variable.kind == "choice":
            values[position] = np.clip(values[position], variable.domain[0], variable.domain[-1])
    rounded, _ = rounding.Rounder(sketch.variables).round(values[None], NEAREST)
    return [tuple(int(value) for value in row) for row in rounded[0]]
