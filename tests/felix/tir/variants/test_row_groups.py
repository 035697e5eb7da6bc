"""Short rows that a block takes in groups."""

from __future__ import annotations

import functools

import pytest

import felix
from felix import workloads
from felix.measure.cuda.building import build as cuda_build
from felix.task import Task
from felix.verify import compare
from tests.felix.tir.variants.variant_programs import CPU, GPU, texts
from tests.support import legal_rows

CUDA = "cuda -arch=sm_90"

ROWS = {
    "softmax": functools.partial(workloads.softmax, (1536, 128)),
    "layer norm": functools.partial(workloads.layer_norm, (394, 768)),
    "rms norm": functools.partial(workloads.rms_norm, (2364, 96)),
    "sum of rows": functools.partial(workloads.reduce, (12, 200, 197), (2,)),
}


def test_short_rows_are_grouped() -> None:
    for make in ROWS.values():
        assert texts(make(), GPU) == ["row_groups"]
        assert texts(make(), CPU) == []


@pytest.mark.parametrize(
    "task",
    [
        workloads.softmax((100, 128)),
        workloads.softmax((1536, 4096)),
        workloads.softmax((1031, 128)),
        workloads.reduce((4096, 16), (1,)),
        workloads.gemm(512, 512, 64),
    ],
    ids=["few", "long", "a prime number", "too short for threads", "a product"],
)
def test_other_rows_are_not_grouped(task: Task) -> None:
    assert "row_groups" not in texts(task, GPU)


@pytest.mark.parametrize("name", ROWS)
def test_a_block_takes_a_group_of_rows_in_one_kernel(name: str) -> None:
    """Results of rows are in registers: TVM would read them in shared memory too early."""
    task = ROWS[name](target=CUDA)
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "row_groups")
    rows = legal_rows.draw(sketch, 3, seed=2)
    report = compare.check_rows(sketch, rows)
    assert (report.checked, report.mismatches) == (len(rows), ())
    mod = sketch.schedule(rows[0]).mod
    (launch,) = cuda_build.lower(mod, task.target).plan.launches
    factors = [v.name for v in sketch.variables if v.kind == "tile"]
    decided = dict(zip((v.name for v in sketch.variables), rows[0].tolist(), strict=True))
    assert [launch.extents[0], launch.extents[4]] == [decided[name] for name in factors]
    shared = (b for b in mod["main"].body.block.alloc_buffers if b.scope() == "shared")
    assert list(shared) == []
