"""What building a candidate costs, from its exact features: statements, and NVRTC's seconds.

*Statements* are those of the largest kernel after unrolling (`code_statements`). A software
pipeline writes its body out once more for each stage that it drains, 1 + last stage copies in all,
which the feature does not count.

*On a CPU* 160 random schedules of five workloads took 0.12 s + 0.37 ms a statement of CPU time to
build, to a factor of 1.6 (standard deviation; `python benchmarks/build_time.py`).

*For CUDA* the builder refuses long sources, and NVRTC takes 1.25 s for each 100 kB of source and
0.4 s for each million of `unroll_body` (docs/measuring-cuda.md). In 147 schedules of gemm 1024 and
a 3x3 conv2d for an H200 (84 random, 63 proposed), where the source has more than 50 kB, a
statement has 179 to 229 bytes in the median of each sketch. With the constants here a limit of
5 s, the time of 400 kB, tells 17 of the 18 that are longer, and takes 13 of the 129 others for too
long: six of over 200 kB, which NVRTC may give up anyway, and some with 16 or more virtual threads.

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
#: Source of a statement: its index expressions are written out.
BYTES_PER_STATEMENT = 220.0
NVRTC_S_PER_BYTE = 1.25e-5
NVRTC_S_PER_UNROLL_BODY = 0.4e-6

_PIPELINE = "software_pipeline_stage"


@dataclass(frozen=True, slots=True)
class BuildCost:
    """Of candidates [n]: statements, and seconds of the device compiler, 0 where there is none."""

    statements: Array
    compile_s: Array

    @classmethod
    def of(cls, sketch: types.Sketch, features: Array) -> BuildCost:
        """From exact features [n, n_rows, n_features]; 0 where the features do not tell."""
        names = sketch.formulas.names

        def largest(name: str) -> Array:
            """Largest of the rows [n]; the features are log2(1 + x)."""
            if name not in names:
                return np.zeros(len(features))
            logs: Array = features[..., list(names).index(name)].max(axis=1)
            return np.exp2(logs) - 1

        statements = largest("code_statements") * pipeline_copies(sketch.instructions)
        if not sketch.is_gpu:
            return cls(statements, np.zeros(len(features)))
        source_s = NVRTC_S_PER_BYTE * BYTES_PER_STATEMENT * statements
        return cls(statements, source_s + NVRTC_S_PER_UNROLL_BODY * largest("unroll_body"))


def pipeline_copies(instructions: Sequence[types.Instruction]) -> int:
    """How often a schedule's software pipeline writes out its last stage; 1 without a pipeline."""
    copies = 1
    for instruction in instructions:
        if instruction.kind == "Annotate" and instruction.attrs == (_PIPELINE,):
            copies = max(copies, 1 + max(instruction.inputs[1]))
    return copies
