"""Small trace sketches: one of a GEMM, one with compute locations."""

from __future__ import annotations

import functools
from typing import Any

from felix import workloads
from felix.space import sketch as sketching


def gemm(target: Any = "cuda", index: int = 0) -> sketching.Sketch:
    return sketching.trace_sketches(workloads.gemm(64, 48, 32, target=target))[index]


#: The same sketch again, for tests that leave it as it is.
shared_gemm = functools.cache(gemm)


@functools.cache
def pool(target: str = "llvm") -> sketching.Sketch:
    """One with compute locations."""
    return sketching.trace_sketches(workloads.pool2d(1, 15, 15, 16, 3, padding=1, target=target))[
        0
    ]
