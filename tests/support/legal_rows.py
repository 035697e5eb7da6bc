"""Random legal decisions in few structures, so that a test compiles few formulas.

`Sketch.sample` spreads its rows over up to six choices of compute locations; here there are two:
all blocks at the root, and one that TVM samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.verify import compare
from felix.errors import UnsupportedSchedule
from felix.space import legality, sampling
from felix.space.trace_sketch import ROOT, TraceSketch

DRAWN, FIRST = 4096, 128


def draw(sketch: TraceSketch, n: int, seed: int) -> NDArray[np.int64]:
    """At most n rows per structure; none where no drawn row is legal."""
    rng = np.random.default_rng(seed)
    structural = [i for i, v in enumerate(sketch.variables) if v.structural]
    structures = [(ROOT,) * len(structural)]
    for attempt in range(8 if structural else 0):
        sampled = sketch.tvm_sample(seed + attempt + 1)
        if sampled is not None and sampled[structural[0]] != ROOT:
            structure = tuple(sampled[c] for c in structural)
            if _is_modelled(sketch, structure):
                structures.append(structure)
                break
    rows = [np.empty((0, len(sketch.variables)), dtype=np.int64)]
    for structure in structures:
        drawn = sampling.random_rows(sketch.variables, structure, DRAWN, rng)
        rows.append(_first_legal(sketch, drawn, n))
    return np.concatenate(rows)


def checked(sketch: TraceSketch, n: int, seed: int) -> NDArray[np.int64]:
    """Rows as `draw` gives them, of which the formulas say what TVM makes."""
    rows = draw(sketch, n, seed)
    report = compare.check_rows(sketch, rows)
    assert (report.checked, report.mismatches) == (len(rows), ()) and len(rows)
    return rows


def _first_legal(sketch: TraceSketch, drawn: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """The first n rows that are legal; later rows are judged only if there are too few."""
    for part in (drawn[:FIRST], drawn):
        legal = part[legality.is_legal(sketch.formulas.constraints_exact(part))][:n]
        if len(legal) == n:
            break
    return legal


def _is_modelled(sketch: TraceSketch, structure: tuple[int, ...]) -> bool:
    """Whether the symbolic program covers the structure, as `Sketch.sample` asks too."""
    try:
        sketch.formulas.of_structure(structure)
    except UnsupportedSchedule:
        return False
    return True
