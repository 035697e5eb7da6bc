"""Recognising a TVM trace by its text: which design space it is of, with which decisions.

The trace of a schedule differs from the trace of the design space it came from: random variables
are new, instructions without effect are gone, and those of the postprocessors are appended; and
shared memory is dynamic where the decisions need much. So a trace is known by the text of its
simplified form without decisions and kind of shared memory (its *signature*), and the decisions
are read from the same text. Both are plain text: who has them needs TVM no more.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix.tir.design_space import shared_memory

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace

    from felix.space.trace_sketch import TraceSketch

#: Sketch number and decisions.
Located = tuple[int, tuple[int, ...]]

_DECISION = re.compile(r", decision=(\[[^\]]*\]|-?\d+)\)$")
_INTEGER = re.compile(r"-?\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class _Site:
    """A sampling instruction: the variables its decision sets, and a choice's values."""

    columns: tuple[int, ...]
    candidates: tuple[int, ...] | None

    def read(self, decision: str, row: list[int]) -> bool:
        """Write the decision into a row; whether it is one of this instruction."""
        values = [int(text) for text in _INTEGER.findall(decision)]
        if self.candidates is not None:
            if len(values) != 1 or not 0 <= values[0] < len(self.candidates):
                return False
            values = [self.candidates[values[0]]]
        if len(values) != len(self.columns):
            return False
        for column, value in zip(self.columns, values, strict=True):
            row[column] = value
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How to read the decisions of one sketch."""

    sketch_index: int
    sites: tuple[_Site, ...]
    #: a complete row; simplified traces lack sampling instructions that nothing depends on
    template: tuple[int, ...]

    def locate(self, decisions: Sequence[str]) -> Located | None:
        """Sketch and decisions; None if these texts are not decisions of the sketch."""
        if len(decisions) != len(self.sites):
            return None
        row = list(self.template)
        for site, decision in zip(self.sites, decisions, strict=True):
            if not site.read(decision, row):
                return None
        return self.sketch_index, tuple(row)


class Finder:
    """Finds signatures and decisions among the sketches of one task."""

    def __init__(self, sketches: Sequence[TraceSketch]) -> None:
        self._layouts: dict[str, Layout] = {}
        for index, sketch in enumerate(sketches):
            self.add(sketch, index)

    def add(self, sketch: TraceSketch, index: int) -> None:
        """Find traces of another sketch, too."""
        simplified = sketch.trace.simplified(True)
        self._layouts[read(simplified)[0]] = layout(sketch, index, simplified)

    def sketch_of(self, signature: str) -> int | None:
        """Number of the sketch; None if it is none."""
        known = self._layouts.get(signature)
        return None if known is None else known.sketch_index

    def find(self, signature: str, decisions: Sequence[str]) -> Located | None:
        """Number of the sketch, and decisions; None if they are of none."""
        known = self._layouts.get(signature)
        return None if known is None else known.locate(decisions)


def read(simplified: Trace) -> tuple[str, list[str]]:
    """(signature, decision texts in order) of a trace without postprocessors."""
    lines, decisions = [], []
    for line in simplified.as_python(True):
        match = _DECISION.search(line) if "= sch.sample_" in line else None
        if match is not None:
            decisions.append(match[1])
            line = line[: match.start()]
        elif "= sch.sample_" in line:
            line = line.removesuffix(")")
        lines.append(shared_memory.scope_blind(line))
    return "\n".join(lines), decisions


def layout(sketch: TraceSketch, index: int, simplified: Trace) -> Layout:
    """Pair the sampling instructions of a simplified trace with the sketch's variables."""
    columns: dict[int, list[int]] = {}
    for column, variable in enumerate(sketch.variables):
        columns.setdefault(variable.group, []).append(column)
    sites, position = [], -1
    insts = sketch.trace.insts
    for inst in simplified.insts:
        position = next(p for p in range(position + 1, len(insts)) if insts[p].same_as(inst))
        kind = str(inst.kind.name)
        if not kind.startswith("Sample"):
            continue
        candidates = None
        if kind == "SampleCategorical":
            candidates = tuple(int(value) for value in inst.attrs[0])
        sites.append(_Site(tuple(columns.get(position, ())), candidates))
    return Layout(index, tuple(sites), sketch.decisions_of(sketch.trace))
