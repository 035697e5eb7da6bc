"""The symbolic program against TVM's schedules, and the report that says so.

Programs whose buffers, blocks and iterators repeat names, or have names that TVM makes up.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

from benchmarks.support.verify import compare, touched, tvm_schedule
from felix import workloads
from felix.space import sketch as sketching
from felix.symbolic import ir, kernels
from felix.task import Task
from tests.corpus import outcome
from tests.support import legal_rows, share

TASKS = [
    "gemm_primes",
    "gemm_bias_gelu_residual",
    "batch_gemm_tb_bias",
    "conv2d_stride2",
    "conv2d_groups",
    "depthwise_conv2d_nchw",
    "conv_transpose2d",
    "max_pool2d_nchw",
    "avg_pool2d_valid",
    "global_avg_pool2d",
    "softmax_197",
    "layer_norm_two_axes",
    "rms_norm_1",
    "sum_outer_inner",
    "max_last",
    "elementwise_1d",
    "elementwise_broadcast_row",
]


@pytest.mark.parametrize("name, target", share.of(share.crossed(TASKS, ["llvm", "cuda"]), 5))
def test_every_sketch_is_what_tvm_makes(name: str, target: str) -> None:
    for sketch in sketching.trace_sketches(workloads.CHECK_SUITE[name](target)):
        rows = legal_rows.draw(sketch, share.rounds(2, 4), seed=2)
        report = compare.check_rows(sketch, rows)
        assert report.mismatches == ()
        assert report.checked + report.invalid == len(rows)
        assert report.invalid <= len(rows) // 4


@pytest.mark.slow("visits every iteration of two pools")
@pytest.mark.parametrize(
    ("kernels", "shape"), share.of([((5, 2, 3), (2, 3, 9)), ((3, 3), (1, 8, 14, 14))], 1)
)
def test_pools_computed_at_a_pool_across_threads(
    kernels: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """TVM covers what all threads would read, although only a window of them passes."""
    pool, layout = {3: (topi.nn.pool1d, "NCW"), 4: (topi.nn.pool2d, "NCHW")}[len(shape)]
    x = y = te.placeholder(shape, name="x")
    axes = len(shape) - 2
    for kernel in kernels:
        y = pool(
            y, (kernel,) * axes, (1,) * axes, (1,) * axes, (1,) * 2 * axes, "max", layout=layout
        )
    report = compare.check(Task.from_te([x, y], "cuda"), n=3, seed=0)
    assert report.mismatches == () and report.invalid == 0
    assert report.checked >= 3 * 2 ** len(kernels)


def gemm(target: str = "cuda") -> sketching.Sketch:
    return sketching.trace_sketches(workloads.gemm(64, 48, 32, target=target))[0]


def test_report_of_a_task() -> None:
    steps: list[tuple[int, int]] = []
    task = workloads.reduce((64, 96), (1,), target="cuda")
    report = compare.check(task, n=3, seed=1, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(1, 2), (2, 2)]
    assert report.checked == 6 and report.invalid == 0 and report.mismatches == ()
    assert report == compare.check(task, n=3, seed=1)
    read = json.loads(report.to_json())
    assert (read["checked"], read["mismatches"], read["invalid"]) == (6, 0, 0)
    assert [s["index"] for s in read["sketches"]] == [0, 1]
    assert report.lines()[1] == (
        "  sketch 0, stock: 3 rows compared, 0 mismatched, 0 rejected by TVM, "
        "0 with loose allocations"
    )


def changed(sketch: sketching.Sketch, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Make the sketch's concrete program differ from the true one."""
    true = sketch.concrete

    def concrete(decisions: Any) -> ir.SymbolicProgram:
        program = true(decisions)
        change(program)
        return program

    monkeypatch.setattr(sketch, "concrete", concrete)


def one_row(sketch: sketching.Sketch) -> np.ndarray:
    return legal_rows.draw(sketch, 1, seed=0)


def test_a_wrong_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = gemm()

    def longer(program: ir.SymbolicProgram) -> None:
        loops, _ = next(program.walk())
        loops[0].components[0].extent += 1

    changed(sketch, monkeypatch, longer)
    report = compare.check_rows(sketch, one_row(sketch))
    assert {m.kind for m in report.mismatches} >= {"structure"}
    assert report.mismatched == 1
    lines = compare.Report("gemm", "cuda", (report,)).lines(limit=1)
    assert any(line.startswith("    TVM    blockIdx.x:") for line in lines)
    assert lines[-1].endswith("more")


def _other_axis(program: ir.SymbolicProgram) -> None:
    for loops, _ in program.walk():
        for loop in loops:
            if loop.thread == "threadIdx.x":
                loop.thread = "threadIdx.y"


def _to_global(program: ir.SymbolicProgram) -> None:
    next(b for b in program.buffers if b.name == "A_shared").scope = "global"


@pytest.mark.parametrize(
    "change, kind, where", [(_other_axis, "structure", ""), (_to_global, "buffers", "A_shared")]
)
def test_a_wrong_axis_or_scope_is_found(
    monkeypatch: pytest.MonkeyPatch, change: Any, kind: str, where: str
) -> None:
    sketch = gemm()
    changed(sketch, monkeypatch, change)
    report = compare.check_rows(sketch, one_row(sketch))
    assert any(m.kind == kind and where in (m.where, "") for m in report.mismatches)


def test_wrong_formulas_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = gemm()
    rows = one_row(sketch)
    raw = sketch.formulas.raw(rows)
    monkeypatch.setattr(sketch.formulas, "raw", lambda batch: raw + 1)
    report = compare.check_rows(sketch, rows)
    assert {m.kind for m in report.mismatches} == {"features"}
    assert {m.where.split()[0] for m in report.mismatches} >= {"trip_count", "shared_bytes"}


def test_rows_tvm_rejects_are_counted_as_invalid() -> None:
    sketch = gemm()
    row = one_row(sketch)[0].copy()
    for i, variable in enumerate(sketch.variables):
        if variable.kind == "tile":
            row[i] = variable.extent if variable.part == 0 else 1
    report = compare.check_rows(sketch, row[None])
    assert (report.checked, report.invalid, report.mismatches) == (0, 1, ())


def test_memory_that_tvm_allocates_and_never_touches_is_loose_not_wrong() -> None:
    """The padded input of one group of channels: TVM takes all 12 for the 4 that are read."""
    task = workloads.CHECK_SUITE["conv2d_groups_nchw"]("llvm")
    sketch = sketching.trace_sketches(task)[1]
    row = [1, 1, 1, 1, 9, 2, 1, 1, 2, 2, 1, 2, 1, 2, 4, 1, 4, 1, 1, 3, 3, 1, 16, 7]
    report = compare.check_rows(sketch, np.array([row]))
    assert report.mismatches == ()
    (loose,) = report.loose
    assert (loose.buffer, loose.dimension, loose.tvm, loose.felix) == ("pad", 1, 12, 4)
    module = sketch.schedule(row).mod
    assert tvm_schedule.allocated(module)["pad"].shape[1] == 12
    assert touched.count(module, "pad", 1) == 4


def test_smaller_than_touched_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = gemm()
    true = compare.kernels.allocations

    def halved(program: ir.SymbolicProgram) -> Any:
        return [
            dataclasses.replace(a, shape=(a.shape[0], a.shape[1] - 1))
            if a.buffer.name == "A_shared"
            else a
            for a in true(program)
        ]

    rows = one_row(sketch)
    sketch.formulas.raw(rows)
    monkeypatch.setattr(compare.kernels, "allocations", halved)
    report = compare.check_rows(sketch, rows)
    assert {m.where for m in report.mismatches if m.kind == "buffers"} == {"A_shared dimension 1"}
    assert report.loose == ()


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "uint8"])
def test_vectors_that_are_too_long_are_not_proposed(dtype: str) -> None:
    """TVM offers 8 and 16 lanes to types that it knows no limit of."""
    x, y = (te.placeholder((16, 16), dtype, name=name) for name in "xy")
    task = Task.from_te([x, y, topi.nn.dense(x, y, out_dtype=dtype)], "cuda")
    sketch = sketching.trace_sketches(task)[0]
    lanes = [i for i, v in enumerate(sketch.variables) if v.kind == "choice" and 16 in v.domain]
    rows = legal_rows.draw(sketch, 24, seed=0)
    assert len(rows) == 24 and rows[:, lanes[:2]].max() >= 4
    assert compare.check_rows(sketch, rows[:12]).invalid == 0


def first_sketch(tensors: list[te.Tensor], target: str) -> sketching.Sketch:
    return sketching.trace_sketches(Task.from_te(tensors, target))[0]


def test_two_caches_of_one_buffer_are_two() -> None:
    """Each product copies x into a buffer that TVM calls x_shared."""
    x, y, z = (
        te.placeholder((rows, 32), name=name) for rows, name in ((16, "x"), (24, "y"), (40, "z"))
    )
    sketch = first_sketch([x, y, z, topi.nn.dense(x, y), topi.nn.dense(x, z)], "cuda")
    rows = legal_rows.draw(sketch, 3, seed=0)
    report = compare.check_rows(sketch, rows)
    assert (report.checked, report.mismatches) == (3, ())
    caches = [row for row in sketch.formulas.rows if row.buffer == "x_shared"]
    assert sorted(row.block for row in caches) == ["x_shared", "x_shared#1"]
    assert len(set(sketch.formulas.rows)) == sketch.formulas.n_rows


@pytest.mark.parametrize("name", ["all_one_name", "named_as_caches", "named_as_rfactor"])
def test_names_that_mean_nothing(name: str) -> None:
    result = outcome.of(name, "cuda", rows=2)
    assert (result.kind, result.message) == (outcome.Kind.MODELLED, "")
    assert result.rows >= 2


def test_a_name_that_ends_like_an_init_makes_no_init() -> None:
    x, y = te.placeholder((64, 32), name="x"), te.placeholder((48, 32), name="y")
    k = te.reduce_axis((0, 32), name="k")
    product = te.compute((64, 48), lambda i, j: te.sum(x[i, k] * y[j, k], axis=k), name="an_init")
    then = te.compute((64, 48), lambda i, j: product[i, j] + 1.0, name="next_init")
    sketch = first_sketch([x, y, then], "cuda")
    program = sketch.symbolic(())
    assert [b.name for _, b in program.walk() if b.is_init] == ["an_init_init"]
    names = {name for name, _ in kernels.constraints(program, 1024, 49152)}
    assert {"kernel0.low_threads", "kernel0.high_threads"} <= names
