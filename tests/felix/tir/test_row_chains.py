"""Chains of row reductions as one kernel, modelled exactly."""

from __future__ import annotations

import pytest

import felix
from felix import workloads
from felix.measure.cuda import build as cuda_build
from felix.tir.design_space import variants
from felix.verify import compare
from tests.support import legal_rows, row_chains

CUDA = "cuda -arch=sm_90"
GPU, CPU = variants.Machine(132, True, 4), variants.Machine(2, False, 16)


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


def test_only_gpus_have_it():
    task = row_chains.masked_softmax(1536, 128, "llvm")
    assert "row_chain" in names(task, GPU)
    assert "row_chain" not in names(task, CPU)
    assert "row_chain" not in names(row_chains.masked_softmax(1536, 16, "llvm"), GPU)
