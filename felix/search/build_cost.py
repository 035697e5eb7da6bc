"""What building a candidate costs, from its exact features: statements, and seconds for CUDA.

*On a CPU* statements are those of the largest kernel after unrolling (`code_statements`). 160
random schedules of five workloads took 0.12 s + 0.37 ms a statement of CPU time to build, to a
factor of 1.6 (standard deviation; `python benchmarks/build_time.py`).

*For CUDA* they are those of all kernels, which are one source. A software pipeline writes its body
(fetches into shared memory, update) out once more for each stage that it drains, 1 + last stage
copies in all; fewer where its loop is shorter, which is not looked at. On 13 subgraphs 95 % of 77
proposals predicted to take over 2 s had the predicted number of statements within 15 %. Of 32
candidates that a builder would give up or refuse, a limit of 4 s tells 29, and takes none of 75
others for too long (`python benchmarks/cuda_build_time.py`). The length of the source says less
about the time: a statement has 50 to 470 bytes (docs/measuring-cuda.md).

Reads the features of `search.scoring`, which it feeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from felix.search import types

Array = NDArray[np.float64]
#: Statements that take as long to build on a CPU as a program without any.
FREE_STATEMENTS = 330.0
#: CUDA: lowering and NVRTC of a statement; 2670 take 4 s.
CUDA_S = 1.5e-3
#: and this for each step of a thread, which NVRTC may unroll itself
CUDA_S_PER_UNROLL_BODY = 0.27e-6

_PIPELINE = "software_pipeline_stage"


@dataclass(frozen=True, slots=True)
class BuildCost:
    """Of candidates [n]: statements, and CPU seconds of a build for CUDA, 0 for a CPU."""

    statements: Array
    compile_s: Array

    @classmethod
    def of(cls, sketch: types.Sketch, features: Array) -> BuildCost:
        """From exact features [n, n_rows, n_features]; 0 where the features do not tell."""
        names = list(sketch.formulas.names)

        def raw(name: str) -> Array:
            """Of all rows [n, n_rows]: features are log2(1 + x), or 0 and 1, which that leaves."""
            if name not in names:
                return np.zeros(features.shape[:2])
            return np.exp2(features[..., names.index(name)]) - 1

        if not sketch.is_gpu:
            return cls(raw("code_statements").max(axis=1), np.zeros(len(features)))
        is_again = (raw("is_reduction") > 0) | (raw("buf0.shared") > 0)
        times = np.where(is_again, pipeline_copies(sketch.instructions), 1)
        statements = (raw("code_copies") * times).sum(axis=1)
        unrolled_s = CUDA_S_PER_UNROLL_BODY * raw("unroll_body").max(axis=1)
        return cls(statements, CUDA_S * statements + unrolled_s)


def pipeline_copies(instructions: Sequence[types.Instruction]) -> int:
    """How often a schedule's software pipeline writes out its last stage; 1 without a pipeline."""
    copies = 1
    for instruction in instructions:
        if instruction.kind == "Annotate" and instruction.attrs == (_PIPELINE,):
            copies = max(copies, 1 + max(instruction.inputs[1]))
    return copies
