"""Sums split over blocks: by rows, along columns, in chains of threads."""

from __future__ import annotations

import pytest
import tvm

import felix
from felix import errors, workloads
from felix.measure.cuda.building import build as cuda_build
from felix.task import Task
from felix.tir.design_space import blocks, schedule_rules, variants
from felix.verify import compare
from tests.felix.tir.variants.variant_programs import CPU, GPU, Shape, searched, texts
from tests.support import legal_rows

CUDA = "cuda -arch=sm_90"


def test_a_product_is_split_by_the_threads_there_are() -> None:
    row = workloads.gemm(1, 4096, 4096)
    assert texts(row, GPU) == ["split_reduction(parts=32, loop=2)", "split_columns(parts=64)"]
    wide = workloads.gemm(128, 3072, 768)
    assert texts(wide, GPU) == ["split_reduction(parts=4, loop=2)"]
    assert texts(wide, variants.Machine(72, True, 4)) == ["split_reduction(parts=2, loop=2)"]
    assert texts(wide, variants.Machine(16, True, 4)) == []


@pytest.mark.parametrize(
    "task",
    [
        workloads.gemm(1024, 1024, 1024),
        workloads.gemm(8, 64, 1021),
        workloads.gemm(64, 48, 32),
        workloads.softmax((64, 2**16)),
        workloads.elementwise((2**20,), ("relu",)),
    ],
    ids=["parallel enough", "prime", "small", "three passes", "no sum"],
)
def test_other_programs_are_not_split(task: Task) -> None:
    assert texts(task, GPU) == []


def test_metaschedule_splits_by_itself_on_a_cpu() -> None:
    assert texts(workloads.reduce((4, 2**17), (1,)), CPU) == []


def test_a_plain_reduction_is_split_by_the_blocks_there_are() -> None:
    assert texts(workloads.reduce((64, 131072), (1,)), GPU) == [
        "split_reduction(parts=32, loop=1)"
    ]


def test_a_prime_number_of_terms_in_a_row_is_not_split() -> None:
    assert texts(workloads.reduce((1, 4194301), (1,)), GPU) == []


def test_threads_that_would_race_for_a_result_are_refused() -> None:
    """TVM leaves a reduction over threads as it is where a guard joins its terms and its part."""
    for terms, is_sound in ((4096, True), (4093, False)):
        schedule = tvm.s_tir.Schedule(workloads.reduce((2, terms), (1,), target=CUDA).mod)
        _, column = schedule.get_loops(schedule.get_sblock("sum"))
        part, _ = schedule.split(column, factors=[None, 512])
        partial = schedule.rfactor(part, factor_axis=0)
        *outer, term = schedule.get_loops(partial)
        schedule.bind(schedule.fuse(*outer), "blockIdx.x")
        _, thread = schedule.split(term, factors=[None, 64])
        schedule.bind(thread, "threadIdx.x")
        if is_sound:
            schedule_rules.check_reductions(schedule.mod)
        else:
            with pytest.raises(errors.UnsupportedSchedule, match="its last part is shorter"):
                schedule_rules.check_reductions(schedule.mod)


@pytest.mark.parametrize(
    ("shape", "axes", "parts"),
    [
        ((3001, 517), (0,), 66),
        ((4096, 4096), (0,), 64),
        ((10**6, 3), (0,), 10000),
        ((8, 1000, 640), (1,), 25),
        ((30, 40, 4096), (0, 1), 30),
    ],
)
def test_sums_along_columns_are_cut_to_balance_both_blocks(
    shape: Shape, axes: Shape, parts: int
) -> None:
    task = workloads.reduce(shape, axes)
    assert f"split_columns(parts={parts})" in texts(task, GPU)
    assert all(
        prefix.variant.is_replaced
        for prefix in variants.of_program(task.mod, GPU)
        if prefix.variant.name == "split_reduction"
    )
    assert "split_columns" not in str(texts(task, CPU))


@pytest.mark.parametrize(
    "task",
    [
        workloads.gemm(1, 4096, 4096, transpose_b=True),
        workloads.gemm(5, 4096, 4096),
        workloads.reduce((64, 131072), (1,)),
        workloads.reduce((48, 2**14)),
        workloads.reduce((128, 2**14), (0,)),
    ],
    ids=["rows of weights", "weights that are reused", "rows", "everything", "few terms"],
)
def test_other_reductions_do_not_go_along_columns(task: Task) -> None:
    assert "split_columns" not in str(texts(task, GPU))


def unrolled_source(task: Task) -> tuple[int, str]:
    """Parts of a reduction along columns, and its kernels with four columns a thread."""
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "split_columns")
    factors, lanes, *choices = sketch.variables
    assert factors.extent is not None and [lanes.kind, len(choices)] == ["tile", 3]
    mod = sketch.schedule([factors.extent // 4, 4, 64, 512, 64]).mod
    return sketch.variant.parameters[0][1], cuda_build.lower(mod, task.target).source.text


def test_threads_of_one_row_load_four_columns_at_once() -> None:
    """In registers, with no guard, as many terms as are unrolled."""
    parts, source = unrolled_source(workloads.gemm(1, 4096, 4096, target=CUDA))
    assert source.count("*(float4*)(B_ptr") == 4096 // parts
    assert "  if (" not in source


def test_only_the_last_terms_of_a_prime_number_are_guarded() -> None:
    parts, source = unrolled_source(workloads.reduce((3001, 512), (0,), target=CUDA))
    assert source.count("*(float4*)(x_ptr") == -(-3001 // parts)
    assert source.count("  if (") == 1


def test_long_sums_are_spread_over_blocks_and_threads() -> None:
    task = workloads.reduce((1, 1 << 22), (1,), target=CUDA)
    sketch = felix.trace_sketches(task)[-1]
    rows = legal_rows.draw(sketch, 3, seed=1)
    report = compare.check_rows(sketch, rows)
    assert (report.checked, report.mismatches) == (len(rows), ())
    first, second = cuda_build.lower(sketch.schedule(rows[0]).mod, task.target).plan.launches
    assert (first.extents[0], second.extents[0]) == (1024, 1)
    assert min(first.extents[3], second.extents[3]) >= blocks.THREADS[0]


def test_what_replaced_programs_measured_can_still_be_read() -> None:
    """Their sketches are made, and are not searched."""
    sums = workloads.reduce((4096, 512), (0,), target="h200")
    names = [sketch.variant.name for sketch in felix.trace_sketches(sums)]
    assert {"stock", "split_reduction", "split_columns"} == set(names)
    assert {*searched(sums)} == {"stock", "split_columns"}
