"""Chains of row reductions in one kernel of a GPU give the right results."""

from __future__ import annotations

import pytest
import tvm

import felix
from felix.measure.pool import local
from tests.support import row_chains

HAS_GPU = tvm.runtime.device("cuda", 0).exist
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU"),
]
PATIENT = local.LocalOptions(builders=4, build_timeout_s=60.0, max_source_bytes=1 << 30)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1536, 128), (197, 768), (100, 4096), (64, 61)])
@pytest.mark.parametrize("name", row_chains.PROGRAMS)
def test_random_schedules_are_right(name: str, shape: tuple[int, int], dtype: str) -> None:
    task = row_chains.PROGRAMS[name](*shape, "cuda", dtype)
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "row_chain")
    mods = [sketch.schedule(row).mod for row in sketch.sample(16, seed=3)]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(mods)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]
