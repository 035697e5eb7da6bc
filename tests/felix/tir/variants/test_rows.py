"""Short rows that a block takes in groups.

Chains of row reductions as one kernel, modelled exactly.
"""

from __future__ import annotations

import functools

import pytest
from tvm import te, tirx

import felix
from felix import workloads
from felix.measure.cuda.building import build as cuda_build
from felix.task import Task
from felix.tir.design_space import variants
from felix.verify import compare
from tests.felix.tir.variants.variant_programs import CPU, GPU, texts
from tests.support import legal_rows, row_chains

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


def names(task, machine):
    return [each.variant.name for each in variants.of_program(task.mod, machine)]


@pytest.mark.parametrize("name", row_chains.PROGRAMS)
@pytest.mark.parametrize("shape", [(1536, 128), (100, 4096)])
def test_all_reductions_of_a_row_are_one_kernel(name, shape):
    task = row_chains.PROGRAMS[name](*shape, CUDA)
    (sketch,) = (s for s in felix.sketches(task) if s.variant.name == "row_chain")
    rows = legal_rows.draw(sketch, 3, seed=2)
    report = compare.check_rows(sketch, rows)
    assert (report.checked, report.mismatches) == (len(rows), ())
    for row in rows:
        (launch,) = cuda_build.lower(sketch.schedule(row).mod, task.target).plan.launches
        assert launch.extents[0] == shape[0]
        assert launch.extents[3] == row[0]  # threads


def test_programs_that_metaschedule_stitches_itself_have_no_such_variant():
    for task in (workloads.softmax((1536, 128)), workloads.layer_norm((128, 768))):
        assert "row_chain" not in names(task, GPU)
    assert "row_chain" not in names(workloads.gemm(64, 64, 64, epilogue=("bias",)), GPU)


def test_little_left_of_columns_is_no_row_chain():
    """Neighbouring threads would read far from each other."""
    assert "row_chain" in names(workloads.reduce((300, 176), (1,), kind="mean"), GPU)
    assert "row_chain" not in names(workloads.reduce((300, 176), (0,), kind="mean"), GPU)


def test_one_row_with_a_scalar_is_a_row_chain():
    """A tensor without axes is none of a row's terms."""
    x, scale = te.placeholder((1, 64), "float32", "x"), te.placeholder((), "float32", "scale")
    k = te.reduce_axis((0, 64), "k")
    total = te.compute((1,), lambda i: te.sum(scale() * x[i, k], k), "total")
    result = te.compute((1, 3), lambda i, j: total[i] * j.astype("float32"), "result")
    assert "row_chain" in names(Task.from_te([scale, x, result], CUDA, "scaled"), GPU)


def test_a_product_of_parts_of_one_tensor_is_no_row_chain():
    x, k = te.placeholder((100, 384), "bfloat16", "x"), te.reduce_axis((0, 64), "k")

    def scores(h, i, j):
        q, keys = (x[row, h * 64 + first + k] for row, first in ((i, 0), (j, 192)))
        return te.sum(q.astype("float32") * keys.astype("float32"), k)

    product = te.compute((3, 100, 100), scores, "scores")
    result = te.compute((3, 100, 100), lambda *at: product(*at) * tirx.const(0.125, "float32"))
    task = Task.from_te([x, result], CUDA, "scores")
    assert "row_chain" not in names(task, GPU)


def test_only_gpus_have_it():
    task = row_chains.masked_softmax(1536, 128, "llvm")
    assert "row_chain" in names(task, GPU)
    assert "row_chain" not in names(task, CPU)
    assert "row_chain" not in names(row_chains.masked_softmax(1536, 16, "llvm"), GPU)
