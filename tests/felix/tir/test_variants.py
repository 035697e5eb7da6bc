"""Program variants: which a task has, that they compute the same, and that formulas hold."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import pytest
import tvm
from tvm import te, tirx, topi

import felix
from felix import errors, records, workloads
from felix.measure import task_program
from felix.measure.checking import reference
from felix.measure.cuda.building import build as cuda_build
from felix.sketch import diversity
from felix.sketch import sketch as sketching
from felix.task import Task
from felix.tir.design_space import second_reductions, soundness, thread_reductions, variants
from felix.tir.design_space.variants import padded_extents, phases, split_reductions
from felix.tir.design_space.variants.padded_windows import window_multiple
from felix.verify import compare
from tests.support import legal_rows

CUDA = "cuda -arch=sm_90"
Shape = tuple[int, ...]
GPU, CPU = variants.Machine(132, True, 4), variants.Machine(2, False, 16)

SPLIT = {
    "few rows": functools.partial(workloads.gemm, 2, 512, 512, epilogue=("bias", "relu")),
    "channels": functools.partial(workloads.conv2d, 1, 7, 7, 64, 64, 3, padding=1),
    "window first": functools.partial(
        workloads.conv2d, 1, 7, 7, 3, 64, 32, padding=16, layout="NCHW"
    ),
    "mapped": functools.partial(workloads.reduce, (6, 2**17), (1,), kind="mean"),
    "rows": functools.partial(workloads.reduce, (6, 2**17), (1,), kind="max"),
    "everything": functools.partial(workloads.reduce, (48, 2**14)),
    "columns": functools.partial(workloads.reduce, (3001, 176), (0,), kind="mean"),
    "middle": functools.partial(workloads.reduce, (2, 3001, 99), (1,), kind="max"),
    "one row": functools.partial(workloads.gemm, 1, 512, 1031, epilogue=("bias", "relu")),
}
PADDED = {
    "primes": functools.partial(workloads.gemm, 67, 127, 67, epilogue=("bias", "relu")),
    "batch": functools.partial(workloads.gemm, 32, 197, 64, batch=2, transpose_b=True),
    "windows": functools.partial(
        workloads.conv2d, 1, 17, 14, 67, 37, 3, padding=1, layout="NCHW", epilogue=("relu",)
    ),
}
ROWS = {
    "softmax": functools.partial(workloads.softmax, (1536, 128)),
    "layer norm": functools.partial(workloads.layer_norm, (394, 768)),
    "rms norm": functools.partial(workloads.rms_norm, (2364, 96)),
    "sum of rows": functools.partial(workloads.reduce, (12, 200, 197), (2,)),
}
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
    "topi": (
        _from_topi(
            topi.nn.conv2d_transpose_nchw,
            (1, 8, 4, 5),
            (8, 6, 3, 3),
            (2, 3),
            (1, 1),
            "float32",
            (1, 1),
        ),
        (2, 3),
    ),
    "groups": (
        _from_topi(
            topi.nn.group_conv2d_transpose_nchw,
            (1, 8, 4, 5),
            (8, 3, 4, 4),
            (2, 2),
            (1, 1),
            "float32",
            (0, 0),
            2,
        ),
        (2, 2),
    ),
}


def program(task: Task, prefix: variants.Prefix) -> tvm.IRModule:
    schedule = tvm.s_tir.Schedule(prefix.mod or task.mod)
    prefix.apply(schedule)
    return schedule.mod


def result_of(task: Task, mod: tvm.IRModule) -> reference.Array:
    """What the program computes of fixed inputs."""
    arguments = task_program.arguments(task.mod)
    tensors = [tvm.runtime.tensor(array)
               for array in reference.inputs(arguments, 0, positive=False)]  # fmt: skip
    tvm.tirx.build(mod, "llvm")(*tensors)
    pairs = zip(tensors, arguments, strict=True)
    (result,) = (tensor.numpy() for tensor, argument in pairs if argument.is_output)
    return result


def texts(task: Task, machine: variants.Machine) -> list[str]:
    return [str(prefix.variant) for prefix in variants.of_program(task.mod, machine)]


def test_a_product_is_split_by_the_threads_there_are() -> None:
    row = workloads.gemm(1, 4096, 4096)
    assert texts(row, GPU) == ["split_reduction(parts=32, loop=2)", "split_columns(parts=64)"]
    wide = workloads.gemm(128, 3072, 768)
    assert texts(wide, GPU) == ["split_reduction(parts=4, loop=2)"]
    assert texts(wide, variants.Machine(72, True, 4)) == ["split_reduction(parts=2, loop=2)"]
    assert texts(wide, variants.Machine(16, True, 4)) == []


@pytest.mark.parametrize(
    "task",
    [workloads.gemm(1024, 1024, 1024), workloads.gemm(8, 64, 1021), workloads.gemm(64, 48, 32),
     workloads.softmax((64, 2**16)), workloads.elementwise((2**20,), ("relu",))],
    ids=["parallel enough", "prime", "small", "three passes", "no sum"],
)  # fmt: skip
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
            soundness.check_reductions(schedule.mod)
        else:
            with pytest.raises(errors.UnsupportedSchedule, match="its last part is shorter"):
                soundness.check_reductions(schedule.mod)


@pytest.mark.parametrize(
    ("shape", "axes", "parts"),
    [((3001, 517), (0,), 66), ((4096, 4096), (0,), 64), ((10**6, 3), (0,), 10000),
     ((8, 1000, 640), (1,), 25), ((30, 40, 4096), (0, 1), 30)],
)  # fmt: skip
def test_sums_along_columns_are_cut_to_balance_both_blocks(
    shape: Shape, axes: Shape, parts: int
) -> None:
    task = workloads.reduce(shape, axes)
    assert f"split_columns(parts={parts})" in texts(task, GPU)
    assert all(prefix.variant.is_replaced for prefix in variants.of_program(task.mod, GPU)
               if prefix.variant.name == "split_reduction")  # fmt: skip
    assert "split_columns" not in str(texts(task, CPU))


@pytest.mark.parametrize(
    "task",
    [workloads.gemm(1, 4096, 4096, transpose_b=True), workloads.gemm(5, 4096, 4096),
     workloads.reduce((64, 131072), (1,)), workloads.reduce((48, 2**14)),
     workloads.reduce((128, 2**14), (0,))],
    ids=["rows of weights", "weights that are reused", "rows", "everything", "few terms"],
)  # fmt: skip
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
    assert min(first.extents[3], second.extents[3]) >= thread_reductions.THREADS[0]


def test_short_rows_are_grouped() -> None:
    for make in ROWS.values():
        assert texts(make(), GPU) == ["row_groups"]
        assert texts(make(), CPU) == []


@pytest.mark.parametrize(
    "task",
    [workloads.softmax((100, 128)), workloads.softmax((1536, 4096)),
     workloads.softmax((1031, 128)), workloads.reduce((4096, 16), (1,)),
     workloads.gemm(512, 512, 64)],
    ids=["few", "long", "a prime number", "too short for threads", "a product"],
)  # fmt: skip
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


def test_extents_are_padded_that_divide_badly() -> None:
    assert texts(workloads.gemm(197, 1021, 509), CPU) == [
        "padded_extents(loop0=16, loop1=64, loop2=64)"
    ]
    assert [padded_extents.multiple(extent) for extent in (100, 13, 344, 11008, 50257)] == [
        1, 1, 32, 1, 64,
    ]  # fmt: skip
    assert texts(workloads.gemm(197, 256, 256), CPU) == ["padded_extents(loop0=16)"]


def searched(task: Task) -> list[str]:
    """Variants of the sketches that are searched."""
    return [sketch.variant.name for sketch in diversity.searched(felix.trace_sketches(task))]


def test_a_padded_program_replaces_one_that_tiles_cannot_divide() -> None:
    """Of the task's own, one sketch is left."""
    padded, split = "padded_extents", "padded_extents+split_reduction"
    prime = workloads.gemm(197, 3072, 768, target="h200")
    assert searched(prime) == ["stock", padded, padded, split, split]
    smooth = workloads.gemm(344, 768, 768, target="h200")
    assert searched(smooth)[:4] == ["stock"] * 3 + ["split_reduction"]
    assert "padded_extents" in searched(smooth)
    on_cpu = workloads.gemm(197, 256, 256)
    assert searched(on_cpu) == [sketch.variant.name for sketch in felix.trace_sketches(on_cpu)]


def test_phases_replace_the_program_that_multiplies_four_times_as_often() -> None:
    four_taps = (1, 8, 8, 64, 32, 4)
    assert searched(workloads.conv_transpose2d(*four_taps, target="h200")).count("stock") == 1
    three_taps = (1, 8, 8, 64, 32, 3)
    for others in (
        workloads.conv_transpose2d(*three_taps, target="h200"),
        workloads.conv_transpose2d(*four_taps),
    ):
        assert searched(others) == [sketch.variant.name for sketch in felix.sketches(others)]


def test_what_replaced_programs_measured_can_still_be_read() -> None:
    """Their sketches are made, and are not searched."""
    sums = workloads.reduce((4096, 512), (0,), target="h200")
    names = [sketch.variant.name for sketch in felix.trace_sketches(sums)]
    assert {"stock", "split_reduction", "split_columns"} == set(names)
    assert {*searched(sums)} == {"stock", "split_columns"}


def test_windows_are_padded_that_move_along_an_extent_that_divides_badly() -> None:
    assert texts(workloads.conv2d(1, 35, 35, 127, 131, 3, padding=1), CPU) == [
        "padded_windows(loop1=36, loop2=36, loop3=144, loop4=128)"
    ]
    extents = (7, 13, 14, 17, 28, 35, 71, 147)
    grown = [-(-e // m) * m for e, m in zip(extents, map(window_multiple, extents), strict=True)]
    assert grown == [7, 13, 14, 18, 28, 36, 72, 152]
    assert texts(workloads.depthwise_conv2d(1, 65, 65, 67, 3, padding=1), CPU) == []
    assert texts(workloads.pool2d(1, 131, 131, 32, 3), CPU) == []


def test_a_padded_reduction_is_split_as_well() -> None:
    assert texts(workloads.gemm(1, 4099, 4093), GPU) == [
        "split_columns(parts=63)",
        "padded_extents(loop1=64, loop2=64)",
        "padded_extents+split_reduction(loop1=64, loop2=64, parts=32, loop=2)",
    ]


@pytest.mark.parametrize("name", PHASES)
def test_a_transposed_convolution_by_phases_computes_the_same(name: str) -> None:
    make, strides = PHASES[name]
    task = make(target="llvm")
    (prefix,) = phases.prefixes(task.mod, GPU)
    assert prefix.variant.parameters == tuple((f"stride{i}", s) for i, s in enumerate(strides))
    expected, actual = (result_of(task, mod) for mod in (task.mod, program(task, prefix)))
    assert reference.mismatch(actual, expected, task_program.tolerance(task.mod)) is None


def test_phases_multiply_no_zeros_between_cells() -> None:
    task = workloads.conv_transpose2d(1, 16, 16, 32, 32)
    (prefix,) = phases.prefixes(task.mod, GPU)
    assert 3.9 < task.flops / Task.from_prim_func(program(task, prefix)["main"]).flops < 4.1


@pytest.mark.parametrize(
    "task",
    [workloads.conv2d(1, 8, 8, 4, 4, 3, stride=2), workloads.conv_transpose2d(
        1, 8, 8, 4, 4, 3, stride=1), workloads.gemm(8, 8, 8), workloads.pool2d(1, 8, 8, 4)],
    ids=["convolution", "stride 1", "product", "pooling"],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("kernel", "kernels"), [(3, 3), (4, 2)], ids=["join overhangs", "join is whole"]
)
def test_the_parts_of_phases_are_added_and_joined(kernel: int, kernels: int) -> None:
    """In the join's kernel where TVM can place them there, and as the formulas say."""
    task = workloads.conv_transpose2d(1, 9, 9, 256, 128, kernel, target=CUDA)
    name = "phases+split_reduction"
    split = [s for s in felix.trace_sketches(task) if s.variant.name == name]
    assert split
    for sketch in split:
        rows = legal_rows.draw(sketch, 2, seed=1)
        report = compare.check_rows(sketch, rows)
        assert report.checked == 2 and not report.mismatches
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
    (joined,) = second_reductions.join_consumer(schedule, schedule.get_sblock(split.only))
    actual, expected = result_of(task, joined.mod), result_of(task, task.mod)
    assert reference.mismatch(actual, expected, task_program.tolerance(task.mod)) is None


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
    entry = records.DatabaseEntry(sketch.mod, schedule.trace, (1.0,), task.target)
    records.export_database(tmp_path, [entry])
    (stored,) = records.import_database(tmp_path)
    built = tvm.s_tir.Schedule(stored.mod)
    stored.trace.apply_to_schedule(built, remove_postproc=False)
    tolerance = task_program.tolerance(task.mod)
    expected = result_of(task, task.mod)
    assert reference.mismatch(result_of(task, built.mod), expected, tolerance) is None


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
    [workloads.gemm(128, 768, 768), workloads.gemm(8, 1024, 768, transpose_b=True),
     workloads.gemm(100, 1000, 768, transpose_b=True), workloads.gemm(32, 32, 768),
     workloads.conv2d(1, 16, 16, 64, 64, 1, layout="NCHW"), workloads.softmax((1024, 1024)),
     workloads.conv2d(1, 56, 56, 96, 96, 3, groups=96, padding=1, layout="NCHW")],
    ids=["short rows", "few rows", "no whole panels", "one panel", "whole rows of cells",
         "no product", "depthwise"],
)  # fmt: skip
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
    program = sketches[-1].concrete(legal_rows.draw(sketches[-1], 1, seed=1)[0])
    assert [loop.kind for loop in program.loops_of(program.block("B_reindex_reindex"))] == [
        "parallel", "vectorized",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*SPLIT, *PADDED, *PACKED])
def test_a_variant_computes_what_the_task_does(name: str) -> None:
    task = (SPLIT | PADDED | PACKED)[name]()
    expected = result_of(task, task.mod)
    every = variants.of_program(task.mod, CPU if name in PACKED else GPU)
    prefix = [each for each in every if each.variant.name != "row_chain"][-1]  # has GPU threads
    actual = result_of(task, program(task, prefix))
    assert reference.mismatch(actual, expected, task_program.tolerance(task.mod)) is None


def test_schedules_of_a_packed_operand_compute_what_the_task_does() -> None:
    """Tiles that are no box of the result, with an epilogue behind them."""
    task = PACKED["transposed"]()
    expected = result_of(task, task.mod)
    sketches = [s for s in felix.sketches(task) if s.variant != variants.STOCK]
    for sketch in sketches:
        for row in legal_rows.draw(sketch, 4, seed=3):
            actual = result_of(task, sketch.program(row))
            assert reference.mismatch(actual, expected, task_program.tolerance(task.mod)) is None


@pytest.mark.parametrize(
    "name",
    ["few rows", "window first", "rows", "columns", "middle", "one row", "primes", "windows"],
)  # fmt: skip
def test_formulas_of_variants_say_what_tvm_makes(name: str) -> None:
    """The first sketch of a variant, and one with a software pipeline."""
    task = (SPLIT | PADDED)[name](target=CUDA)
    sketches = [s for s in felix.trace_sketches(task) if s.variant != variants.STOCK]
    for sketch in (sketches[0], sketches[-1]):
        rows = legal_rows.draw(sketch, 2, seed=2)
        report = compare.check_rows(sketch, rows)
        assert (report.checked, report.mismatches) == (len(rows), ())


def test_a_variant_of_a_gpu_has_two_kernels_with_its_epilogue_in_the_second() -> None:
    sketch = felix.trace_sketches(SPLIT["few rows"](target=CUDA))[-1]
    mod = sketch.schedule(legal_rows.draw(sketch, 1, seed=1)[0]).mod
    launches = cuda_build.lower(mod, sketch.task.target).plan.launches
    assert len(launches) == 2


def test_the_tasks_own_program_comes_first() -> None:
    sketches = felix.trace_sketches(SPLIT["few rows"](target=CUDA))
    names = [sketch.variant.name for sketch in sketches]
    n_stock = names.count("stock")
    assert names == ["stock"] * n_stock + ["split_reduction"] * (len(names) - n_stock)
    assert [sketch.index for sketch in sketches] == list(range(len(names)))
    assert "split_reduction(parts=" in repr(sketches[-1])


def test_a_variant_that_tvm_cannot_make_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: tvm.s_tir.Schedule, *args: object, **options: object) -> None:
        raise RuntimeError("TVM cannot")

    task = SPLIT["rows"](target=CUDA)
    n_sketches = len(sketching.trace_sketches(task))
    monkeypatch.setattr(tvm.s_tir.Schedule, "rfactor", fail)
    assert len(sketching.trace_sketches(task)) == 2 < n_sketches
