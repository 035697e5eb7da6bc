"""Sketches as users see them: variables, decisions, schedules, formulas and their cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, topi

import felix
from felix import errors, workloads
from felix.features import spec
from felix.space import coordinates, legality, sampling, variables
from felix.space import sketch as sketching
from tests.support import share, sketches

COLUMN = {name: i for i, name in enumerate(spec.NAMES)}


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_variables_describe_the_trace(target: str) -> None:
    for sketch in sketching.trace_sketches(workloads.gemm(64, 48, 30, target=target)):
        names = [v.name for v in sketch.variables]
        assert len(set(names)) == len(names)
        samples = [i for i in sketch.trace.insts if i.kind.name.startswith("Sample")]
        groups = {
            v.group: [w for w in sketch.variables if w.group == v.group] for v in sketch.variables
        }
        assert len(groups) == len(samples)
        for parts in groups.values():
            assert [v.part for v in parts] == list(range(len(parts)))
            for v in parts:
                assert v.domain == tuple(sorted(set(v.domain)))
                if v.kind == "tile":
                    assert v.extent in (64, 48, 30) and not v.structural and v.log_scale
                    assert all(v.extent % d == 0 for d in v.domain)
                else:
                    assert len(parts) == 1 and v.extent is None
            if parts[0].kind == "tile":
                assert max(parts[-1].domain) <= 64
                assert parts[0].domain == tuple(
                    d for d in range(1, 65) if parts[0].extent % d == 0
                )


def test_choices_are_the_values_themselves() -> None:
    choices = [v.domain for v in sketches.shared_gemm("cuda").variables if v.kind == "choice"]
    assert choices == [(1, 2, 3, 4), (1, 2, 3, 4), (0, 16, 32, 64, 128, 256, 512, 1024)]
    (unroll,) = (v for v in sketches.shared_gemm("llvm").variables if v.kind == "choice")
    assert unroll.domain == (0, 16, 64, 512) and not unroll.structural


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_decisions_have_labels_in_their_order(target: str) -> None:
    sketch = sketches.shared_gemm(target)
    groups = variables.labels(sketch.variables)
    assert sum(n for _, n in groups) == len(sketch.variables)
    labels = [label for label, n in groups for _ in range(n)]
    assert labels == [variable.label for variable in sketch.variables]
    assert [label for label, n in groups if n > 1] == [
        "tile of i0 in matmul",
        "tile of i1 in matmul",
        "tile of k in matmul",
    ]
    assert {label for label, n in groups if n == 1} >= {"unroll_explicit"}
    assert "location of pad" in dict(variables.labels(sketches.pool().variables))


def test_compute_locations_are_structural() -> None:
    structural = [v for v in sketches.pool().variables if v.structural]
    assert structural and all(v.domain[:3] == (-2, -1, 0) for v in structural)


@pytest.mark.parametrize("limit", [1, 2])
def test_samples_keep_to_so_many_structures(limit: int) -> None:
    sketch = sketches.pool()
    columns = [i for i, v in enumerate(sketch.variables) if v.structural]
    rows = sketch.sample(64, seed=3, max_structures=limit)
    assert len(np.unique(rows[:, columns], axis=0)) == limit
    assert len(np.unique(sketch.sample(64, seed=3)[:, columns], axis=0)) > limit


# ---------------------------------------------------------------- rows and schedules


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_samples_are_legal_distinct_and_deterministic(target: str) -> None:
    sketch = sketches.shared_gemm(target)
    rows = sketch.sample(200, seed=4)
    assert rows.shape == (200, len(sketch.variables)) and rows.dtype == np.int64
    assert len(np.unique(rows, axis=0)) == 200
    np.testing.assert_array_equal(rows, sketches.gemm(target).sample(200, seed=4))
    assert (rows != sketch.sample(200, seed=5)).any()
    for v, column in zip(sketch.variables, rows.T, strict=True):
        assert set(column.tolist()) <= set(v.domain)
        if v.kind == "tile":
            parts = [i for i, w in enumerate(sketch.variables) if w.group == v.group]
            assert (rows[:, parts].prod(axis=1) == v.extent).all()
    assert legality.is_legal(sketch.formulas.constraints_exact(rows)).all()


def test_samples_cover_the_domains() -> None:
    sketch = sketches.shared_gemm("llvm")
    rows = sketch.sample(2000, seed=0)
    for v, column in zip(sketch.variables, rows.T, strict=True):
        assert set(column.tolist()) == set(v.domain), v.name


def test_few_samples_need_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a sketch asks for one sample, which says whether there are legal decisions."""
    drawn: list[int] = []
    random_rows = sampling.random_rows

    def recorded(variables: Any, structure: Any, n: int, rng: Any) -> Any:
        drawn.append(n)
        return random_rows(variables, structure, n, rng)

    monkeypatch.setattr(sampling, "random_rows", recorded)
    sketch = sketches.shared_gemm("llvm")
    assert len(sketch.sample(1, seed=1)) == 1 and max(drawn) == sampling.CHUNK_SHARE
    drawn.clear()
    assert len(sketch.sample(64, seed=1)) == 64 and drawn[0] == sampling.CHUNK


def test_a_small_space_is_repeated_not_refused() -> None:
    sketch = sketching.trace_sketches(workloads.softmax((48, 128), target="cuda"))[0]
    rows = sketch.sample(500, seed=0)
    assert len(rows) == 500
    assert len(np.unique(rows, axis=0)) <= np.prod([len(v.domain) for v in sketch.variables])


def test_a_sketch_without_decisions_has_one_row() -> None:
    (sketch,) = sketching.trace_sketches(workloads.elementwise((32, 64), ("relu",), target="llvm"))
    assert sketch.variables == ()
    rows = sketch.sample(3, seed=0)
    assert rows.shape == (3, 0)
    assert sketch.formulas.raw(rows)[:, 0, COLUMN["trip_count"]].tolist() == [2048] * 3
    assert sketch.schedule(()).mod is not None


@pytest.mark.slow("samples a space without a legal point for long")
def test_an_impossible_sketch_says_so() -> None:
    """A software pipeline needs a reduction loop of at least two iterations."""
    sketch = sketching.trace_sketches(workloads.gemm(32, 48, 1, target="cuda"))[1]
    with pytest.raises(errors.InvalidSchedule, match="no legal decisions"):
        sketch.sample(1)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_schedules_hold_the_decisions(target: str) -> None:
    for sketch in sketching.trace_sketches(workloads.gemm(64, 48, 32, target=target)):
        for row in sketch.sample(5, seed=9):
            schedule = sketch.schedule(row)
            assert sketch.decisions_of(schedule.trace) == tuple(row)
            assert sketch.decisions_of(sketch.with_decisions(row)) == tuple(row)


def test_locations_round_trip_too() -> None:
    sketch = sketches.pool()
    structures = set()
    for row in sketch.sample(12, seed=2):
        assert sketch.decisions_of(sketch.schedule(row).trace) == tuple(row)
        structures.add(coordinates.structure(sketch.variables, row))
    assert len(structures) > 1


def test_wrong_decisions_are_refused() -> None:
    sketch = sketches.shared_gemm()
    row = sketch.sample(1, seed=0)[0].tolist()
    with pytest.raises(errors.DecisionError, match="16 decisions needed, 15 given"):
        sketch.schedule(row[:-1])
    with pytest.raises(errors.DecisionError, match="is not one of"):
        sketch.schedule([*row[:-1], 3])
    with pytest.raises(errors.DecisionError, match="multiply to"):
        sketch.schedule([1, 1, 1, 1, 1, *row[5:]])


def test_what_tvm_rejects_is_invalid() -> None:
    sketch = sketches.shared_gemm()
    row = sketch.sample(1, seed=0)[0]
    row[:13] = [64, 1, 1, 1, 1, 48, 1, 1, 1, 1, 32, 1, 1]  # one thread a block
    assert not legality.is_legal(sketch.formulas.constraints_exact(row[None])).any()
    with pytest.raises(errors.InvalidSchedule, match="rejects the decisions"):
        sketch.schedule(row)


def test_an_error_of_tvm_is_an_invalid_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def apply_to_schedule(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("the trace does not apply")

    sketch = sketches.gemm("llvm")
    monkeypatch.setattr(sketch, "with_decisions", lambda decisions: Broken())
    row = sketch.sample(1, seed=0)[0].tolist()
    with pytest.raises(errors.InvalidSchedule, match="the trace does not apply"):
        sketch.apply(row)
    assert not sketch.is_applicable(row)


def test_a_location_that_tvm_does_not_have_is_invalid() -> None:
    sketch = sketches.pool()
    row = sketch.sample(1, seed=0)[0]
    for i, v in enumerate(sketch.variables):
        if v.structural:
            row[i] = max(v.domain)
    with pytest.raises(errors.InvalidSchedule):
        sketch.schedule(row)


ACCEPTED = [
    ("gemm_197", "cuda"),
    ("gemm_bias_relu", "llvm"),
    ("batch_gemm_tb_bias", "cuda"),
    ("conv2d_rectangular", "cuda"),
    ("conv2d", "llvm"),
    ("conv_transpose2d_nchw", "cuda"),
    ("depthwise_conv2d_nchw", "cuda"),
    ("max_pool2d_padded", "llvm"),
    ("avg_pool2d_valid", "cuda"),
    ("softmax_middle", "llvm"),
    ("softmax_197", "cuda"),
    ("layer_norm", "llvm"),
    ("sum_middle", "cuda"),
    ("sum_all", "llvm"),
    ("add_relu", "cuda"),
]


@pytest.mark.parametrize(("name", "target"), share.of(ACCEPTED, 2))
def test_tvm_accepts_nearly_every_sampled_row(name: str, target: str) -> None:
    """At least 95 % of each sketch; uniform sampling: 7 % for a GEMM, 2 % for a convolution."""
    for sketch in sketching.trace_sketches(workloads.CHECK_SUITE[name](target)):
        rows = sketch.sample(20, seed=6)
        rejected = 0
        for row in rows:
            try:
                sketch.schedule(row)
            except errors.InvalidSchedule:
                rejected += 1
        assert rejected <= 1, f"{rejected} of 20 rows of {sketch!r}"


def test_a_postprocessor_that_fails_rejects_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def apply(self, schedule: Any) -> bool:
            raise IndexError("Index 6 out of bounds 6")

        def __str__(self) -> str:
            return "s_tir.meta_schedule.Broken(0x0)"

    sketch = sketches.pool()
    row = sketch.sample(1, max_structures=1)[0]
    monkeypatch.setattr(type(sketch._space_generator), "postprocs", [Broken()])
    with pytest.raises(errors.InvalidSchedule, match=r"Broken fails: Index 6 out of bounds"):
        sketch.schedule(row)


def test_a_reduction_that_tvm_cannot_spread_over_threads_is_left_out() -> None:
    """No row of such a sketch becomes a program."""
    b = te.placeholder((64, 96), "bool", name="b")
    any_row = felix.Task.from_te([b, topi.any(b, axis=1)], target="cuda")
    left_out: list[str] = []
    (sketch,) = sketching.trace_sketches(any_row, on_left_out=left_out.append)
    assert sketch.index == 0
    assert sketch.schedule(sketch.sample(1, seed=0)[0]).mod
    (line,) = left_out
    assert "sketch 1 left out: TVM cannot spread the reduction over threads" in line
    total = felix.Task.from_te([b, topi.sum(b.astype("int32"), axis=1)], target="cuda")
    assert len(sketching.trace_sketches(total)) == 2
