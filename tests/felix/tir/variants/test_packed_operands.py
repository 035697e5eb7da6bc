"""Operands that are packed on a CPU."""

from __future__ import annotations

import functools

import pytest

import felix
from felix import workloads
from felix.task import Task
from felix.tir.design_space import variants
from felix.verify import compare
from tests.felix.tir.variants.variant_programs import CPU, GPU, check_same, program, texts
from tests.support import legal_rows

PACKED = {
    "transposed": functools.partial(
        workloads.gemm, 32, 128, 128, batch=2, transpose_b=True, epilogue=("bias", "relu")
    ),
    "long rows": functools.partial(workloads.gemm, 16, 1024, 32),
    "channels": functools.partial(workloads.conv2d, 1, 4, 4, 16, 1024, 3, padding=1),
    "channels first": functools.partial(
        workloads.conv2d, 1, 8, 8, 16, 64, 3, padding=1, layout="NCHW", epilogue=("bias", "relu")
    ),
    "odd columns": functools.partial(workloads.gemm, 128, 36, 128, epilogue=("relu",)),
}


def test_an_operand_is_packed_that_vectors_read_badly() -> None:
    packed = ["packed_operand(operand=1, panel=32)"]
    assert texts(workloads.gemm(128, 768, 768, transpose_b=True), CPU) == packed
    assert texts(workloads.gemm(128, 1024, 768), CPU) == packed  # rows of a page
    assert texts(workloads.conv2d(1, 14, 14, 64, 1024, 3, padding=1), CPU) == packed
    assert texts(workloads.gemm(128, 48, 768, transpose_b=True), CPU) == [
        "packed_operand(operand=1, panel=16)"
    ]


def test_vectors_are_of_another_axis_where_the_last_has_none() -> None:
    """Channels where cells are last, rows where columns are no multiple of a vector."""
    channels = ["packed_operand(operand=1, panel=32)"]
    assert texts(workloads.conv2d(1, 14, 14, 64, 64, 3, layout="NCHW"), CPU) == channels
    assert texts(workloads.conv2d(1, 14, 14, 64, 64, 1, layout="NCHW"), CPU) == channels
    rows = ["packed_operand(operand=0, panel=32)"]
    assert rows[0] in texts(workloads.gemm(128, 1001, 768), CPU)
    assert texts(workloads.gemm(128, 1000, 768, transpose_b=True), CPU) == rows


@pytest.mark.parametrize(
    "task",
    [
        workloads.gemm(128, 768, 768),
        workloads.gemm(8, 1024, 768, transpose_b=True),
        workloads.gemm(100, 1000, 768, transpose_b=True),
        workloads.gemm(32, 32, 768),
        workloads.conv2d(1, 16, 16, 64, 64, 1, layout="NCHW"),
        workloads.softmax((1024, 1024)),
        workloads.conv2d(1, 56, 56, 96, 96, 3, groups=96, padding=1, layout="NCHW"),
    ],
    ids=[
        "short rows",
        "few rows",
        "no whole panels",
        "one panel",
        "whole rows of cells",
        "no product",
        "depthwise",
    ],
)
def test_other_programs_have_no_packed_operand(task: Task) -> None:
    assert texts(task, CPU) == []


def test_packing_is_for_cpus() -> None:
    assert "packed" not in str(texts(workloads.gemm(1024, 1024, 1024, transpose_b=True), GPU))


@pytest.mark.parametrize("name", PACKED)
def test_formulas_of_packed_operands_say_what_tvm_makes(name: str) -> None:
    sketches = [s for s in felix.trace_sketches(PACKED[name]()) if s.variant != variants.STOCK]
    assert 1 <= len(sketches) <= 2
    rows = legal_rows.draw(sketches[-1], 2, seed=2)
    report = compare.check_rows(sketches[-1], rows)
    assert (report.checked, report.mismatches) == (len(rows), ())


def test_a_packed_operand_stays_outside_of_the_product() -> None:
    """No compute location is a decision of it, and it is not inlined."""
    sketches = felix.trace_sketches(PACKED["transposed"]())
    assert not any(v.structural for s in sketches for v in s.variables)
    concrete = sketches[-1].concrete(legal_rows.draw(sketches[-1], 1, seed=1)[0])
    assert [loop.kind for loop in concrete.loops_of(concrete.block("B_reindex_reindex"))] == [
        "parallel",
        "vectorized",
    ]


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_operand_computes_what_the_task_does(name: str) -> None:
    task = PACKED[name]()
    check_same(task, program(task, variants.of_program(task.mod, CPU)[-1]))


def test_schedules_of_a_packed_operand_compute_what_the_task_does() -> None:
    """Tiles that are no box of the result, with an epilogue behind them."""
    task = PACKED["transposed"]()
    sketches = [s for s in felix.sketches(task) if s.variant != variants.STOCK]
    for sketch in sketches:
        for row in legal_rows.draw(sketch, 4, seed=3):
            check_same(task, sketch.program(row))
