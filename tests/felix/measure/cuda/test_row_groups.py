"""Groups of rows on a GPU: every kind of reduction over threads gives the right results."""

from __future__ import annotations

import pytest
import tvm

import felix
from felix.measure.pool import local

HAS_GPU = tvm.runtime.device("cuda", 0).exist
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU"),
]
PATIENT = local.LocalOptions(builders=4, build_timeout_s=60.0, max_source_bytes=1 << 30)


@pytest.mark.parametrize(
    "text",
    [
        "softmax:1536x128",
        "softmax:12x197x197",
        "layer_norm:394x768",
        "rms_norm:2364x96",
        "reduce:12x200x197,axes=2,kind=max",
        "softmax:1536x128,dtype=float16",
    ],
)
def test_random_schedules_are_right(text: str) -> None:
    """Rows of a part of a warp, of a warp and of several warps."""
    task = felix.workloads.parse(text, target="cuda")
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "row_groups")
    mods = [sketch.schedule(row).mod for row in sketch.sample(24, seed=3)]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(mods)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]
