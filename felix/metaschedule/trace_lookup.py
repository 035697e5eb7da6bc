"""Which sketch a TVM trace belongs to, with which decisions, and what the cost model says of it.

MetaSchedule hands schedules around. The trace of one differs from the trace of the design space
it came from; `trace_text` says how one is recognised all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from felix import errors
from felix.metaschedule import trace_text
from felix.search import interface, scoring
from felix.space import coordinates
from felix.space.trace_sketch import TraceSketch

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace

#: Sketch number and decisions.
Located = interface.Key


class TraceScorer:
    """Finds and scores the traces of one task's sketches.

    Args:
        scorer: of the sketches.
        sketches: those a trace may belong to; the list that the scorer has, and that `make` adds
            to.
        make: makes the sketch of a simplified trace of no known sketch and is given its number;
            raises UnsupportedSchedule if that cannot be modelled. None: there are no others.
    """

    def __init__(
        self,
        scorer: scoring.Scorer,
        sketches: list[TraceSketch],
        make: Callable[[Trace, int], TraceSketch] | None = None,
    ) -> None:
        self.scorer = scorer
        self.sketches = sketches
        self._make = make
        self._finder = trace_text.Finder(sketches)
        #: signatures of what no sketch can model
        self._unknown: set[str] = set()

    def find(self, trace: Trace) -> Located | None:
        """Sketch and decisions of a trace; None if no sketch can model it."""
        simplified = trace.simplified(True)
        signature, decisions = trace_text.read(simplified)
        if self._finder.sketch_of(signature) is None and signature not in self._unknown:
            self._learn(signature, simplified)
        return self._finder.find(signature, decisions)

    def sketch_of(self, trace: Trace) -> TraceSketch:
        """The sketch of a design space's trace, made if it is new.

        Raises:
            UnsupportedSchedule: it cannot be modelled.
        """
        index = self._finder.sketch_of(trace_text.read(trace.simplified(True))[0])
        if index is None:
            if self._make is None:
                raise errors.UnsupportedSchedule("the trace is of no sketch known here")
            self._add(self._make(trace, len(self.sketches)))
            return self.sketches[-1]
        return self.sketches[index]

    def predict(self, traces: Sequence[Trace], n_new_structures: int = 8) -> NDArray[np.float64]:
        """Predicted ln(latency_us) of traces; NaN for those no sketch can model.

        Args:
            traces: with all decisions.
            n_new_structures: structures of a sketch that this call may compile beyond those
                compiled before (up to a second each); traces of further ones count as unknown.
        """
        candidates = [self.find(trace) for trace in traces]
        ln_latency = np.full(len(traces), np.nan)
        if not self.sketches:
            return ln_latency
        self.scorer.begin_round(n_new_structures)
        groups: dict[tuple[int, coordinates.Structure], list[int]] = {}
        for number, located in enumerate(candidates):
            if located is not None:
                index, decisions = located
                structure = coordinates.structure(self.sketches[index].variables, decisions)
                groups.setdefault((index, structure), []).append(number)
        for (index, structure), numbers in groups.items():
            if not self._is_known(index, structure):
                continue
            rows = [located[1] for i in numbers if (located := candidates[i]) is not None]
            ln_latency[numbers] = self.scorer.predict(index, np.asarray(rows, np.int64))
        return ln_latency

    def features(self, located: Located) -> NDArray[np.float64] | None:
        """Exact rows [R, F] of one candidate; None if its structure cannot be modelled."""
        index, decisions = located
        structure = coordinates.structure(self.sketches[index].variables, decisions)
        self.scorer.begin_round(1)
        values = np.asarray([decisions], np.float64)
        try:
            rows: NDArray[np.float64] = self.scorer.features(index, structure, values)[0]
        except errors.UnsupportedSchedule:
            return None
        return rows

    def _is_known(self, index: int, structure: coordinates.Structure) -> bool:
        """Whether a structure has formulas, compiled now if the allowance is not spent."""
        if not self.scorer.admits(index, structure):
            return False
        try:
            self.scorer.of_structure(index, structure)
        except errors.UnsupportedSchedule:
            return False
        return True

    def _add(self, sketch: TraceSketch) -> None:
        self._finder.add(sketch, len(self.sketches))
        self.sketches.append(sketch)

    def _learn(self, signature: str, simplified: Trace) -> None:
        self._unknown.add(signature)
        if self._make is not None:
            with contextlib.suppress(errors.UnsupportedSchedule):
                self._add(self._make(simplified, len(self.sketches)))
