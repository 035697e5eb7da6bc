"""Short rows that a block takes in groups, and sums split over blocks.

Chains of row reductions as one kernel, modelled exactly."""

from __future__ import annotations

import functools

import pytest
import tvm
from tvm import te, tirx

import felix
from felix import errors, workloads
from felix.builder.cuda import build as cuda_build
from felix.task import Task
from felix.tir.design_space import blocks, schedule_rules, variants
from tests.felix.tir.variants.variant_programs import CPU, GPU, Shape, searched, texts
from tests.support import legal_rows, row_chains, share

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
    rows = legal_rows.checked(sketch, 3, seed=2)
    mod = sketch.schedule(rows[0]).mod
    (launch,) = cuda_build.lower(mod, task.target).plan.launches
    factors = [v.name for v in sketch.variables if v.kind == "tile"]
    decided = dict(zip((v.name for v in sketch.variables), rows[0].tolist(), strict=True))
    assert [launch.extents[0], launch.extents[4]] == [decided[name] for name in factors]
    shared = (b for b in mod["main"].body.block.alloc_buffers if b.scope() == "shared")
    assert list(shared) == []


def names(task, machine):
    return [each.variant.name for each in variants.of_program(task.mod, machine)]


@pytest.mark.parametrize(
    ("name", "shape"), share.crossed(row_chains.PROGRAMS, [(1536, 128), (100, 4096)])
)
def test_all_reductions_of_a_row_are_one_kernel(name, shape):
    task = row_chains.PROGRAMS[name](*shape, CUDA)
    (sketch,) = (s for s in felix.sketches(task) if s.variant.name == "row_chain")
    rows = legal_rows.checked(sketch, 3, seed=2)
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


# ---------------------------------------------------------------- sums split over blocks


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
    rows = legal_rows.checked(sketch, 3, seed=1)
    first, second = cuda_build.lower(sketch.schedule(rows[0]).mod, task.target).plan.launches
    assert (first.extents[0], second.extents[0]) == (1024, 1)
    assert min(first.extents[3], second.extents[3]) >= blocks.THREADS[0]


def test_what_replaced_programs_measured_can_still_be_read() -> None:
    """Their sketches are made, and are not searched."""
    sums = workloads.reduce((4096, 512), (0,), target="h200")
    names = [sketch.variant.name for sketch in felix.trace_sketches(sums)]
    assert {"stock", "split_reduction", "split_columns"} == set(names)
    assert {*searched(sums)} == {"stock", "split_columns"}
