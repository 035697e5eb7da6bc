"""What building a candidate costs, from its exact features: statements, and seconds for CUDA.

*On a CPU* statements are those of the largest kernel after unrolling (`code_statements`). 160
random schedules of five workloads took 0.12 s + 0.37 ms a statement of CPU time to build, to a
factor of 1.6 (standard deviation).

*For CUDA* they are those of all kernels, which are one source. A software pipeline writes its body
(fetches into shared memory, update) out once more for each stage that it drains, 1 + last stage
copies in all; fewer where its loop is shorter, which is ignored. NVRTC unrolls more by
itself: of what a thread executes a statement, the first times count as copies of it, as many as
suit the kind of store. Fitted to the CPU seconds of 1,319 builds, of schedules in `data/cuda` and
random ones (docs/design/measuring-cuda.md; `python benchmarks/cuda_build_time.py` checks it).

*A template* says itself how long its kernels take to compile (`build_s`), where that varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from felix.features.kind import FeatureKind
from felix.search import interface

Array = NDArray[np.float64]
#: Statements that take as long to build on a CPU as a program without any.
FREE_STATEMENTS = 330.0
#: CUDA, CPU seconds of lowering and NVRTC: of any program,
CUDA_S = 0.09
#: of a statement of a reduction, and of each time that a thread executes one,
REDUCTION_S, REDUCTION_TRIP_S = 1.0e-3, 0.11e-6
#: of a fetch into shared memory and of any other statement: each unrolled so often at most.
FETCH_S, FETCH_UNROLL = 0.5e-3, 8
OTHER_S, OTHER_UNROLL = 1.6e-3, 16

_PIPELINE = "software_pipeline_stage"


@dataclass(frozen=True, slots=True)
class BuildCost:
    """Of candidates [n]: statements, and CPU seconds of a build for CUDA, 0 for a CPU."""

    statements: Array
    compile_s: Array

    @classmethod
    def of(cls, sketch: interface.Sketch, features: Array) -> BuildCost:
        """From exact features [n, n_rows, n_features]; those that are not there count as 0."""
        names = list(sketch.formulas.names)

        def raw(name: str) -> Array:
            """Of all rows [n, n_rows]: features are log2(1 + x), or 0 and 1, which that leaves."""
            if name not in names:
                return np.zeros(features.shape[:2])
            return np.exp2(features[..., names.index(name)]) - 1

        if sketch.formulas.kind is FeatureKind.TEMPLATE:
            return cls(np.zeros(len(features)), raw("build_s").sum(axis=1))
        if not sketch.is_gpu:
            return cls(raw("code_statements").max(axis=1), np.zeros(len(features)))
        is_reduction = raw("is_reduction") > 0
        is_fetch = (raw("buf0.shared") > 0) & ~is_reduction
        copies, trips = raw("code_copies"), raw("serial_trips")
        times = np.where(is_reduction | is_fetch, pipeline_copies(sketch.instructions), 1)
        each = np.maximum(trips / np.maximum(copies, 1), 1)
        seconds = np.where(
            is_reduction,
            REDUCTION_S * copies * times + REDUCTION_TRIP_S * trips,
            np.where(
                is_fetch,
                FETCH_S * copies * times * np.minimum(each, FETCH_UNROLL),
                OTHER_S * copies * np.minimum(each, OTHER_UNROLL),
            ),
        )
        return cls((copies * times).sum(axis=1), CUDA_S + seconds.sum(axis=1))


def pipeline_copies(instructions: Sequence[interface.Instruction]) -> int:
    """How often a schedule's software pipeline writes out its last stage; 1 without a pipeline."""
    copies = 1
    for instruction in instructions:
        if instruction.kind == "Annotate" and instruction.attrs == (_PIPELINE,):
            copies = max(copies, 1 + max(instruction.inputs[1]))
    return copies
