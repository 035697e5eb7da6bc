"""Inputs, roles, reference programs, tolerances, and how large results are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, topi
from tvm.script import tirx as T

from felix import workloads
from felix.builder import task_program
from felix.runner.checking import reference
from felix.runner.checking.reference import Array
from tests.support import tir_programs


def _mod(*tensors: te.Tensor) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def _gemm(n: int, dtype: str = "float32") -> tvm.IRModule:
    a = te.placeholder((n, n), name="a", dtype=dtype)
    b = te.placeholder((n, n), name="b", dtype=dtype)
    k = te.reduce_axis((0, n), name="k")
    return _mod(a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c"))


def _run(mod: tvm.IRModule, arrays: list[reference.Array]) -> list[reference.Array]:
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(mod, "llvm")["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


@tir_programs.prim_func(s_tir=True)
def scale(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("scale"):
            vi = T.axis.spatial(8, i)
            b[vi] = b[vi] * a[vi]


def test_roles_and_reproducible_inputs() -> None:
    args = task_program.arguments(_gemm(8))
    assert [(a.name, a.is_input, a.is_output) for a in args] == [
        ("a", True, False),
        ("b", True, False),
        ("c", False, True),
    ]
    one, two = (reference.inputs(args, 7, positive=False) for _ in range(2))
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(one, two, strict=True))
    assert np.isnan(one[2]).all() and not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[0], reference.inputs(args, 8, positive=False)[0])
    assert (reference.inputs(args, 7, positive=True)[0] >= 0.5).all()


def test_in_place_program_starts_from_random_contents() -> None:
    mod = tvm.IRModule({"main": scale.with_attr("global_symbol", "main")})
    args = task_program.arguments(mod)
    assert args[1].is_input and args[1].is_output
    assert np.isfinite(reference.inputs(args, 0, positive=False)[1]).all()


def test_index_tensors_stay_inside_what_they_index() -> None:
    table = te.placeholder((5, 3), name="table")
    rows = te.placeholder((64,), name="rows", dtype="int32")
    args = task_program.arguments(_mod(table, rows, topi.take(table, rows, axis=0)))
    assert args[1].index_bound == 5
    values = reference.inputs(args, 0, positive=False)[1]
    assert values.min() >= 0 and values.max() < 5
    plain = te.placeholder((64,), name="plain", dtype="int8")
    args = task_program.arguments(_mod(plain, te.compute((64,), lambda i: plain[i] + plain[i])))
    assert reference.inputs(args, 0, positive=False)[0].min() < 0


@pytest.mark.parametrize("text", ["gemm:7,7,7", "gemm:64,64,64", "softmax:16x33"])
def test_scheduled_reference_equals_the_unscheduled_program(text: str) -> None:
    mod = workloads.parse(text).mod
    before = mod.script()
    arrays = reference.inputs(task_program.arguments(mod), 0, positive=False)
    fast = task_program.scheduled(mod)
    assert mod.script() == before and "T.parallel" in fast.script()
    want = _run(mod, arrays)[-1]
    assert reference.mismatch(_run(fast, arrays)[-1], want, 1e-6) is None


@pytest.mark.parametrize("n", [30, 64])
def test_a_transposed_matrix_is_read_a_few_rows_at_a_time(n: int) -> None:
    a, b = (te.placeholder((n, n), name=name) for name in "ab")
    k = te.reduce_axis((0, n), name="k")
    mod = _mod(a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[j, k], k), name="c"))
    fast = task_program.scheduled(mod)
    arrays = reference.inputs(task_program.arguments(mod), 0, positive=False)
    assert np.array_equal(_run(fast, arrays)[2], _run(mod, arrays)[2])
    sch = s_tir.Schedule(fast)
    innermost = sch.get(sch.get_loops(sch.get_sblock("c_update"))[-1])
    assert int(innermost.extent) == 4


def test_mismatch_says_where_and_handles_special_values() -> None:
    want = np.array([[1.0, np.nan, np.inf]], "float32")
    assert reference.mismatch(want.copy(), want, 1e-5) is None
    got = np.array([[np.nan, np.nan, np.inf]], "float32")
    message = reference.mismatch(got, want, 1e-5)
    assert message is not None and "1 of 3" in message and "[0, 0]" in message
    assert reference.mismatch(np.array([3]), np.array([3]), 0.0) is None
    assert reference.mismatch(np.array([3]), np.array([4]), 0.0) is not None


def test_bfloat16_round_trip() -> None:
    args = task_program.arguments(_gemm(8, "bfloat16"))
    arrays = reference.inputs(args, 0, positive=False)
    assert arrays[0].dtype.name == "bfloat16" and np.isnan(arrays[2].astype("f4")).all()
    assert reference.mismatch(arrays[0], arrays[0], 0.01) is None


def test_large_inputs_repeat_themselves_and_no_tile_of_theirs_does() -> None:
    rows, columns = 2100, 2048
    large = reference.Argument("a", "bfloat16", (rows, columns), is_input=True, is_output=False)
    (array,) = reference.inputs([large], seed=1, positive=False)
    assert array.shape == (rows, columns) and array.dtype.name == "bfloat16"
    flat = array.ravel().view(np.uint16)
    period = reference._PERIOD
    np.testing.assert_array_equal(flat[period:], flat[: flat.size - period])
    assert len(np.unique(array.view(np.uint16), axis=0)) == rows


def test_integers_that_were_floats_may_be_off_by_one() -> None:
    """Few of them, where the program has a tolerance."""
    expected = np.arange(1000).astype(np.int8)
    for n_off, by, relative, is_right in (
        (10, 1, 1e-5, True),
        (11, 1, 1e-5, False),
        (10, 2, 1e-5, False),
        (1, 1, 0.0, False),
    ):
        actual = expected.copy()
        actual[:n_off] += by
        assert (reference.mismatch(actual, expected, relative) is None) == is_right


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (np.int64(0), np.iinfo(np.int64).min),
        (np.uint64(0), np.iinfo(np.uint64).max),
        (np.uint8(255), 0),
        (np.bool_(False), True),
    ],
)
def test_far_integers_are_not_taken_for_near_ones(
    expected: np.generic, actual: int | bool
) -> None:
    wanted = np.full(1000, expected)
    result = wanted.copy()
    result[3] = actual
    assert reference.mismatch(result, wanted, 1e-5) is not None


def test_results_without_axes_are_poisoned() -> None:
    for dtype in ("int64", "uint8", "float32", "bool"):
        argument = reference.Argument("y", dtype, (), is_input=False, is_output=True)
        poisoned = reference.poison(argument)
        assert poisoned.shape == () and poisoned.dtype == dtype
    wide = dataclasses.replace(argument, dtype="int32", shape=(2,))
    assert reference.poison(wide).tobytes() == b"\x5a" * 8


# ---------------------------------------------------------------- how large results are


#: Terms of a sum whose value is small under this seed: a 25th of what such sums usually are.
TERMS, SEED = 1_000_003, 2


def _sum_task() -> tuple[reference.Expected, Array, float]:
    """The reference of a sum to one value, its terms, its tolerance."""
    task = workloads.parse(f"reduce:{TERMS},axes=0,kind=sum", "llvm")
    args = task_program.arguments(task.mod)
    run = task_program.on_cpu(task.mod, task.target, args)
    terms = reference.inputs(args, SEED, positive=False)[0]
    return reference.compute(run, args, SEED), terms, task_program.tolerance(task.mod)


def _partial_sums(terms: Array) -> Array:
    """Sums of 1,024 terms each, as parallel kernels add them."""
    padded = np.pad(terms, (0, -terms.size % 1024))
    return padded.reshape(-1, 1024).sum(axis=1, dtype=np.float32)


def test_a_right_kernel_passes_where_the_terms_cancel() -> None:
    checked, terms, relative = _sum_task()
    output, size = checked.outputs[1], checked.rms[1]
    right = _partial_sums(terms).sum(dtype=np.float32)
    assert abs(float(output)) < 50 and size == pytest.approx(TERMS**0.5, rel=0.3)
    assert reference.mismatch(np.array(right), output, relative) is not None
    assert reference.mismatch(np.array(right), output, relative, size) is None


def test_wrong_kernels_are_refused_where_the_terms_cancel() -> None:
    checked, terms, relative = _sum_task()
    partial = _partial_sums(terms)
    wrong = {
        "a term left out": terms.sum(dtype=np.float64) - terms[np.abs(terms) > 1][0],
        "a slice left out": partial.sum() - terms[:64].sum(),
        "a partial sum counted twice": partial.sum() + partial[5],
        "a partial sum lost": partial.sum() - partial[5],
        "the last terms left out": terms[: TERMS // 64 * 64].sum(dtype=np.float64),
    }
    for name, value in wrong.items():
        actual = np.array(value, np.float32)
        message = reference.mismatch(actual, checked.outputs[1], relative, checked.rms[1])
        assert message is not None, name


def test_a_result_that_an_epilogue_cuts_off_has_the_size_of_others() -> None:
    task = workloads.gemm(1, 1, 4096, epilogue=("relu",), target="llvm")
    args = task_program.arguments(task.mod)
    run = task_program.on_cpu(task.mod, task.target, args)
    seed = next(s for s in range(20) if float(run(s, False)[2].item()) == 0.0)
    checked = reference.compute(run, args, seed)
    assert checked.outputs[2].item() == 0.0 and 20 < checked.rms[2] < 90
    relative = task_program.tolerance(task.mod)
    rounded = np.full((1, 1), 1e-5, np.float32)
    assert reference.mismatch(rounded, checked.outputs[2], relative, checked.rms[2]) is None
    wrong = np.full((1, 1), 0.5, np.float32)
    assert reference.mismatch(wrong, checked.outputs[2], relative, checked.rms[2]) is not None


class _Runs:
    """A program of one output of some elements that notes what it is run for."""

    def __init__(self, count: int, dtype: str = "float32") -> None:
        self.calls: list[tuple[int, bool]] = []
        self._count, self._dtype = count, dtype

    def __call__(self, seed: int, positive: bool) -> dict[int, Array]:
        self.calls.append((seed, positive))
        return {1: np.full(self._count, 1 + seed % 2, self._dtype)}

    def args(self, inputs: int) -> list[reference.Argument]:
        return [
            reference.Argument("x", self._dtype, (inputs,), is_input=True, is_output=False),
            reference.Argument("y", self._dtype, (self._count,), is_input=False, is_output=True),
        ]


@pytest.mark.parametrize(
    ("count", "inputs", "dtype", "runs"),
    [
        (16, 8, "float32", 1),
        (5, 8, "float32", 4),
        (1, 8, "float32", 16),
        (1, 2**24, "float32", 5),
        (1, 2**30, "float32", 4),
        (1, 8, "int32", 1),
    ],
)
def test_few_results_are_computed_for_more_inputs(
    count: int, inputs: int, dtype: str, runs: int
) -> None:
    run = _Runs(count, dtype)
    checked = reference.compute(run, run.args(inputs), seed=6)
    assert run.calls == [(6 + i, False) for i in range(runs)]
    values = [1 + call[0] % 2 for call in run.calls]
    assert checked.outputs[1].tolist() == [1] * count
    size = float(np.sqrt(np.mean(np.square(values)))) if dtype == "float32" else 0.0
    assert checked.rms == {1: pytest.approx(size)}


def test_positive_inputs_are_taken_for_every_draw() -> None:
    run = _Runs(8)

    def infinite(seed: int, positive: bool) -> dict[int, Array]:
        outputs = run(seed, positive)
        return outputs if positive else {1: outputs[1] * np.inf}

    checked = reference.compute(infinite, run.args(8), seed=0)
    assert checked.positive and run.calls == [(0, False), (0, True), (1, True)]
