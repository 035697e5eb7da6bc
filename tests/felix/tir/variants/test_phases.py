"""Transposed convolutions by phases, and operands that are packed on a CPU."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import pytest
import tvm
from tvm import te, tirx, topi

import felix
from felix import workloads
from felix.builder.cuda import build as cuda_build
from felix.database import metaschedule_files
from felix.task import Task
from felix.tir.design_space import blocks, variants
from felix.tir.design_space.variants import phases, split_reductions
from tests.felix.tir.variants.variant_programs import (
    CPU,
    GPU,
    Shape,
    check_same,
    program,
    searched,
    texts,
)
from tests.support import legal_rows, share

CUDA = "cuda -arch=sm_90"


def from_topi(
    operator: Callable[..., te.Tensor], data: Shape, kernel: Shape, *arguments: object, target: str
) -> Task:
    x, w = te.placeholder(data, name="data"), te.placeholder(kernel, name="kernel")
    return Task.from_te([x, w, operator(x, w, *arguments)], target=target)


def flipped(target: str) -> Task:
    """Taps that run against the cells: result[y] takes spread[y - r + 4]."""
    x, w = te.placeholder((5, 4), name="x"), te.placeholder((5, 4), name="w")
    spread = te.compute(
        (15, 4),
        lambda i, c: tirx.if_then_else(
            te.all(i >= 1, i < 14, te.indexmod(i - 1, 3).equal(0)),
            x[te.indexdiv(i - 1, 3), c],
            0.0,
        ),
        name="spread",
    )
    r, c = te.reduce_axis((0, 5), "r"), te.reduce_axis((0, 4), "c")
    result = te.compute(
        (11,), lambda y: te.sum(w[r, c] * spread[y - r + 4, c], axis=[r, c]), name="result"
    )
    return Task.from_te([x, w, result], target=target)


_transposed = functools.partial(functools.partial, workloads.conv_transpose2d)

_from_topi = functools.partial(functools.partial, from_topi)

#: With the strides of their phases.
PHASES = {
    "four taps": (_transposed(1, 4, 5, 8, 8, 4, epilogue=("bias", "relu")), (2, 2)),
    "three taps": (_transposed(2, 4, 5, 3, 4, 3, layout="NCHW"), (2, 2)),
    "few taps": (_transposed(1, 4, 3, 3, 4, 2, stride=3, padding=0), (3, 3)),
    "one axis": (_transposed(1, 4, 5, 3, 4, 3, stride=(1, 2)), (2,)),
    "flipped": (flipped, (3,)),
    "topi": (_from_topi(
        topi.nn.conv2d_transpose_nchw, (1, 8, 4, 5), (8, 6, 3, 3), (2, 3), (1, 1), "float32",
        (1, 1)), (2, 3)),
    "groups": (_from_topi(
        topi.nn.group_conv2d_transpose_nchw, (1, 8, 4, 5), (8, 3, 4, 4), (2, 2), (1, 1),
        "float32", (0, 0), 2), (2, 2)),
}  # fmt: skip


@pytest.mark.slow("searches two spaces")
def test_phases_replace_the_program_that_multiplies_four_times_as_often() -> None:
    four_taps = (1, 8, 8, 64, 32, 4)
    assert searched(workloads.conv_transpose2d(*four_taps, target="h200")).count("stock") == 1
    three_taps = (1, 8, 8, 64, 32, 3)
    for others in (
        workloads.conv_transpose2d(*three_taps, target="h200"),
        workloads.conv_transpose2d(*four_taps),
    ):
        assert searched(others) == [sketch.variant.name for sketch in felix.sketches(others)]


@pytest.mark.parametrize("name", share.of(PHASES, 2))
def test_a_transposed_convolution_by_phases_computes_the_same(name: str) -> None:
    make, strides = PHASES[name]
    task = make(target="llvm")
    (prefix,) = phases.prefixes(task.mod, GPU)
    assert prefix.variant.parameters == tuple((f"stride{i}", s) for i, s in enumerate(strides))
    check_same(task, program(task, prefix))


def test_phases_multiply_no_zeros_between_cells() -> None:
    task = workloads.conv_transpose2d(1, 16, 16, 32, 32)
    (prefix,) = phases.prefixes(task.mod, GPU)
    assert 3.9 < task.flops / Task.from_prim_func(program(task, prefix)["main"]).flops < 4.1


@pytest.mark.parametrize(
    "task",
    [
        workloads.conv2d(1, 8, 8, 4, 4, 3, stride=2),
        workloads.conv_transpose2d(1, 8, 8, 4, 4, 3, stride=1),
        workloads.gemm(8, 8, 8),
        workloads.pool2d(1, 8, 8, 4),
    ],
    ids=["convolution", "stride 1", "product", "pooling"],
)
def test_other_programs_have_no_phases(task: Task) -> None:
    assert phases.prefixes(task.mod, GPU) == []


def test_phases_are_split() -> None:
    even = workloads.conv_transpose2d(1, 16, 16, 256, 128)
    assert texts(even, GPU) == [
        "phases(stride0=2, stride1=2)",
        "phases+split_reduction(stride0=2, stride1=2, parts=8, loop=6)",
    ]
    odd = workloads.conv_transpose2d(1, 16, 16, 256, 128, 3)
    assert texts(odd, GPU) == texts(even, GPU)


@pytest.mark.slow("searches, and enumerates what it finds")
@pytest.mark.parametrize(("kernel", "kernels"), share.of([(3, 3), (4, 2)], 1))
def test_the_parts_of_phases_are_added_and_joined(kernel: int, kernels: int) -> None:
    """In the join's kernel where TVM can place them there (it is whole), as the formulas say."""
    task = workloads.conv_transpose2d(1, 9, 9, 256, 128, kernel, target=CUDA)
    name = "phases+split_reduction"
    split = [s for s in felix.trace_sketches(task) if s.variant.name == name]
    assert split
    for sketch in split:
        rows = legal_rows.checked(sketch, 2, seed=1)
        mod = sketch.schedule(rows[0]).mod
        assert len(cuda_build.lower(mod, task.target).plan.launches) == kernels


@pytest.mark.parametrize("kernel", [3, 4])
def test_split_phases_compute_the_same(kernel: int) -> None:
    task = workloads.conv_transpose2d(1, 9, 9, 256, 8, kernel, target="llvm")
    (phased,) = phases.prefixes(task.mod, GPU)
    made = program(task, phased)
    (split,) = split_reductions.prefixes(made, GPU)
    schedule = tvm.s_tir.Schedule(made)
    split.apply(schedule)
    (joined,) = blocks.join_consumer(schedule, schedule.get_sblock(split.only))
    check_same(task, joined.mod)


def test_phases_are_one_kernel() -> None:
    """Cells, taps and joining are inlined, where results overhang, too."""
    task = workloads.conv_transpose2d(1, 8, 8, 16, 32, 3, epilogue=("relu",), target=CUDA)
    sketch = next(s for s in felix.trace_sketches(task) if s.variant.name == "phases")
    mod = sketch.schedule(legal_rows.draw(sketch, 1, seed=1)[0]).mod
    assert len(cuda_build.lower(mod, task.target).plan.launches) == 1
    assert sketch.key != felix.trace_sketches(task)[0].key


def test_a_database_has_the_variants_own_program(tmp_path: pathlib.Path) -> None:
    """With it plain TVM builds the schedule."""
    task = workloads.conv_transpose2d(1, 4, 4, 8, 8)
    sketch = next(s for s in felix.trace_sketches(task) if s.variant.name == "phases")
    decisions = sketch.tvm_sample(1)
    assert decisions is not None
    schedule = sketch.schedule(decisions)
    entry = metaschedule_files.DatabaseEntry(sketch.mod, schedule.trace, (1.0,), task.target)
    metaschedule_files.export_database(tmp_path, [entry])
    (stored,) = metaschedule_files.import_database(tmp_path)
    built = tvm.s_tir.Schedule(stored.mod)
    stored.trace.apply_to_schedule(built, remove_postproc=False)
    check_same(task, built.mod)


# --------------------------------------------------------------- operands that are packed on a CPU


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


@pytest.mark.parametrize("name", share.of(PACKED, 2))
def test_formulas_of_packed_operands_say_what_tvm_makes(name: str) -> None:
    sketches = [s for s in felix.trace_sketches(PACKED[name]()) if s.variant != variants.STOCK]
    assert 1 <= len(sketches) <= 2
    legal_rows.checked(sketches[-1], 2, seed=2)


def test_a_packed_operand_stays_outside_of_the_product() -> None:
    """No compute location is a decision of it, and it is not inlined."""
    sketches = felix.trace_sketches(PACKED["transposed"]())
    assert not any(v.structural for s in sketches for v in s.variables)
    concrete = sketches[-1].concrete(legal_rows.draw(sketches[-1], 1, seed=1)[0])
    assert [loop.kind for loop in concrete.loops_of(concrete.block("B_reindex_reindex"))] == [
        "parallel",
        "vectorized",
    ]


@pytest.mark.parametrize("name", share.of(PACKED, 2))
def test_a_packed_operand_computes_what_the_task_does(name: str) -> None:
    task = PACKED[name]()
    check_same(task, program(task, variants.of_program(task.mod, CPU)[-1]))


def test_schedules_of_a_packed_operand_compute_what_the_task_does() -> None:
    """Tiles that are no box of the result, with an epilogue behind them."""
    task = PACKED["transposed"]()
    sketches = [s for s in felix.sketches(task) if s.variant != variants.STOCK]
    for sketch in sketches:
        for row in legal_rows.draw(sketch, share.rounds(1, 4), seed=3):
            check_same(task, sketch.program(row))
