"""What TVM compiles for a CPU: exponentials, divisions and bindings, prepared alike where they are
measured and in networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te, tirx

from felix import workloads
from felix.builder import build, preparation, task_program
from felix.network import executable
from felix.runner.checking import reference
from felix.tir import bindings

# exp written out, against float64: over the whole range, and in what calls it.

N = 1 << 14
TARGET = tvm.target.Target("llvm")


def _mapped(
    function: Callable[..., Any],
    dtype: str = "float32",
    names: tuple[str, ...] = ("x",),
    count: int = N,
) -> tvm.IRModule:
    tensors = [te.placeholder((count,), dtype, name) for name in names]
    y = te.compute((count,), lambda i: function(*(each[i] for each in tensors)), "y")
    return tvm.IRModule({"main": te.create_prim_func([*tensors, y])})


def _run(mod: tvm.IRModule, *values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    like = values[0]
    tensors = [*map(tvm.runtime.tensor, values), tvm.runtime.empty(like.shape, str(like.dtype))]
    build.module(mod, TARGET)["main"](*tensors)
    computed: np.ndarray[Any, Any] = tensors[-1].numpy()
    return computed


def _n_calls(mod: tvm.IRModule, name: str) -> int:
    return mod.script().count(f"T.{name}(")


@pytest.fixture(scope="module")
def exp() -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    function = build.module(_mapped(tirx.exp), TARGET)["main"]

    def run(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        padded = np.zeros(N, np.float32)
        padded[: len(values)] = values
        x, y = tvm.runtime.tensor(padded), tvm.runtime.empty((N,), "float32")
        function(x, y)
        computed: np.ndarray[Any, Any] = y.numpy()[: len(values)]
        return computed

    return run


def _errors(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In units in the last place of the float32 nearest to the truth."""
    truth = np.exp(x.astype(np.float64))
    unit = np.spacing(truth.astype(np.float32)).astype(np.float64)
    return np.abs(y.astype(np.float64) - truth) / unit


def test_within_one_unit_in_the_last_place(exp: Any) -> None:
    x = np.linspace(-104.5, 88.7228, N, dtype=np.float32)
    assert _errors(x, exp(x)).max() < 1.0
    near = np.linspace(-1.0, 1.0, N, dtype=np.float32)
    assert _errors(near, exp(near)).max() < 1.0


@given(st.integers(0, 2**32 - 1))
def test_any_number(exp: Any, bits: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = np.exp(x.astype(np.float64)).astype(np.float32)
    (y,) = exp(x)
    if np.isfinite(truth[0]):
        assert _errors(x, np.array([y]))[0] < 1.0
    else:
        np.testing.assert_equal(y, truth[0])


def test_ends_of_the_range(exp: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, 88.73, -104.0], np.float32)
    expected = [np.inf, 0.0, np.nan, 1.0, 1.0, np.inf, 0.0, np.inf, 0.0]
    np.testing.assert_equal(exp(x), np.array(expected, np.float32))


def test_no_function_is_called_for_each_element() -> None:
    written = preparation.written_out(_mapped(tirx.exp))
    assert _n_calls(_mapped(tirx.exp), "exp") == 1 and _n_calls(written, "exp") == 0
    nested = preparation.written_out(_mapped(lambda x: tirx.exp(-tirx.exp(x))))
    assert _n_calls(nested, "exp") == 0


def test_nested_and_in_a_sigmoid() -> None:
    x = np.linspace(-20.0, 20.0, N, dtype=np.float32)
    nested = _run(_mapped(lambda x: tirx.exp(-tirx.exp(x))), x)
    np.testing.assert_allclose(
        nested, np.exp(-np.exp(x.astype(np.float64))), rtol=1e-4, atol=1e-38
    )
    sigmoid = _run(_mapped(tirx.sigmoid), x)
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=3e-7)


def test_other_types_stay() -> None:
    wide = _mapped(tirx.exp, "float64")
    assert _n_calls(preparation.written_out(wide), "exp") == 1
    x = np.linspace(-700.0, 700.0, N)
    np.testing.assert_allclose(_run(wide, x), np.exp(x), rtol=1e-15)


def test_as_a_script() -> None:
    """`schedule.py` of an artifact is what was compiled."""
    task = workloads.parse("softmax:16x100", target=TARGET)
    prepared = build.prepared(task.mod, TARGET)
    assert _n_calls(task.mod, "exp") == 1 and _n_calls(prepared, "exp") == 0
    tvm.ir.assert_structural_equal(tvm.script.from_source(prepared.script()), prepared)


# Divisions of integers that would trap.

DIVISIONS = 32


def _division_mapped(
    function: Callable[..., Any], dtype: str = "int32", names: tuple[str, ...] = ("n", "d")
) -> tvm.IRModule:
    return _mapped(function, dtype, names, DIVISIONS)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    ("operation", "truth"),
    [
        (tirx.floordiv, np.floor_divide),
        (tirx.floormod, np.mod),
        (tirx.truncmod, np.fmod),
        (tirx.truncdiv, lambda n, d: np.trunc(n / d)),
    ],
)
def test_nothing_traps_and_other_quotients_stay(operation: Any, truth: Any, dtype: str) -> None:
    generator = np.random.default_rng(0)
    low = 0 if dtype == "uint8" else -9
    n, d = (generator.integers(low, 9, DIVISIONS).astype(dtype) for _ in range(2))
    d[0] = 0
    n[1], d[1] = np.iinfo(dtype).min, np.iinfo(dtype).max if dtype == "uint8" else -1
    computed = _run(_division_mapped(operation, dtype), n, d)
    if dtype != "uint8":  # the quotient wraps around
        assert computed[1] == (0 if "mod" in operation.__name__ else n[1])
    n[1], d[1], computed[1] = 0, 1, 0
    is_defined = d != 0
    expected = truth(n[is_defined], d[is_defined])
    np.testing.assert_array_equal(computed[is_defined], expected.astype(dtype))


def test_constants_and_floats_stay() -> None:
    for mod in (
        _division_mapped(lambda n, d: tirx.floordiv(n, 7)),
        _division_mapped(lambda n, d: n / d, "float32"),
    ):
        assert preparation.guarded(mod) is mod


def test_a_divisor_is_drawn_from_1_on() -> None:
    mod = _division_mapped(lambda n, d, k: tirx.floordiv(n, d * d) + k, names=("n", "d", "k"))
    args = task_program.arguments(mod)
    assert [each.name for each in args if each.is_divisor] == ["d"]
    n, d, _, _ = reference.inputs(args, 0, positive=False)
    assert n.min() < 0 < d.min()


def test_all_inputs_are_divisors_where_a_result_is() -> None:
    n, d = (te.placeholder((DIVISIONS,), "int32", name) for name in "nd")
    sums = te.compute((DIVISIONS,), lambda i: d[i] + 1, "sums")
    y = te.compute((DIVISIONS,), lambda i: tirx.floormod(n[i], sums[i]), "y")
    mod = tvm.IRModule({"main": te.create_prim_func([n, d, y])})
    args = task_program.arguments(mod)
    assert [each.name for each in args if each.is_divisor and each.is_input] == ["n", "d"]


def test_a_reference_with_a_divisor_of_0_does_not_end_the_process() -> None:
    mod = _division_mapped(lambda n, d: tirx.floordiv(n, d - 1))
    args = task_program.arguments(mod)
    assert (reference.inputs(args, 0, positive=False)[1] == 1).any()
    task_program.on_cpu(mod, TARGET, args)(0, False)


def test_a_result_of_a_parameters_name_is_none() -> None:
    n, d = (te.placeholder((DIVISIONS,), "int32", name) for name in "nd")
    squares = te.compute((DIVISIONS,), lambda i: n[i] * n[i] + 1, name="d")
    out = te.compute((DIVISIONS,), lambda i: tirx.floordiv(d[i], squares[i]), name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([n, d, out])})
    args = task_program.arguments(mod)
    assert [each.is_divisor for each in args] == [True] * 3


# Bindings of expressions that TVM's vectorizer would read twice.

ROWS, COLUMNS, TERMS = 3, 24, 6
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda g, w: te.sigmoid(g * 3.0) * te.sigmoid(g) * w,
    "silu": lambda g, w: g * te.sigmoid(g) * w,
    "nested": lambda g, w: te.exp(g * te.sigmoid(g)) + w,
    "largest": lambda g, w: tirx.max(te.exp(g) * g, w),
    "quotient": lambda g, w: te.sigmoid(te.sigmoid(g)) * g / (w + 3.0),
    "guarded": lambda g, w: tirx.if_then_else(g > 0.0, te.exp(g) * g, te.exp(w)) * w,
    "half": lambda g, w: (te.exp(g) * g).astype("float16").astype("float32") * w,
}


def scheduled(value: Callable[[Any, Any], Any]) -> tvm.IRModule:
    """Sums over k of a value of g[i, k] and w[j, k], vectorized over j."""
    g, w = te.placeholder((ROWS, TERMS), name="g"), te.placeholder((COLUMNS, TERMS), name="w")
    k = te.reduce_axis((0, TERMS), name="k")
    total = te.compute(
        (ROWS, COLUMNS), lambda i, j: te.sum(value(g[i, k], w[j, k]), axis=k), name="total"
    )
    schedule = s_tir.Schedule(te.create_prim_func([g, w, total]))
    block = schedule.get_sblock("total")
    i, j, reduced = schedule.get_loops(block)
    outer, lanes = schedule.split(j, [None, 4])
    schedule.reorder(i, outer, reduced, lanes)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, reduced)
    return schedule.mod


def at_roots(mod: tvm.IRModule) -> tvm.IRModule:
    return preparation.changed(mod, bindings.at_roots)


def result(mod: tvm.IRModule) -> np.ndarray:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in ((ROWS, TERMS), (COLUMNS, TERMS))]
    tensors = [tvm.runtime.tensor(each.astype("float32")) for each in arrays]
    total = tvm.runtime.tensor(np.zeros((ROWS, COLUMNS), "float32"))
    tvm.compile(mod, target="llvm")["main"](*tensors, total)
    return total.numpy()


@pytest.mark.parametrize("name", CASES)
def test_values_that_are_the_same_for_all_lanes(name: str) -> None:
    mod = scheduled(CASES[name])
    ours = result(at_roots(preparation.written_out(mod)))
    np.testing.assert_allclose(ours, result(mod), rtol=1e-5, atol=1e-5)


def test_tvm_refuses_some_of_them_as_they_are() -> None:
    """If it no longer does, the module can go."""
    with pytest.raises(tvm.error.InternalError, match="Let cannot bind"):
        result(preparation.written_out(scheduled(CASES["silu"])))


def test_a_program_without_bindings_stays() -> None:
    mod = scheduled(CASES["silu"])
    assert at_roots(mod)["main"].same_as(mod["main"])
    assert preparation.changed(mod, lambda func: func) is mod


def test_what_cancels_is_rounded() -> None:
    x = te.placeholder((4,), "float32", "x")
    moved = te.compute((4,), lambda i: x[i] + tirx.const(1e8, "float32"), name="moved")
    back = te.compute((4,), lambda i: moved[i] - tirx.const(1e8, "float32"), name="back")
    schedule = s_tir.Schedule(te.create_prim_func([x, back]))
    schedule.compute_inline(schedule.get_sblock("moved"))
    half = tvm.runtime.tensor(np.full(4, 0.5, "float32"))
    for mod, expected in ((schedule.mod, 0.5), (preparation.prepared(schedule.mod), 0.0)):
        out = tvm.runtime.tensor(np.ones(4, "float32"))
        tvm.compile(mod, target="llvm")["main"](half, out)
        assert out.numpy().tolist() == [expected] * 4  # TVM takes floats for real numbers


def test_what_is_less_itself_in_one_kernel_is_0() -> None:
    """As the guide's table of exceptions says; TVM has no subtraction any more by then."""
    x = te.placeholder((4,), "float32", "x")
    moved = te.compute((4,), lambda i: x[i] + tirx.const(1.0, "float32"), name="moved")
    rest = te.compute((4,), lambda i: moved[i] - moved[i], name="rest")
    schedule = s_tir.Schedule(te.create_prim_func([x, rest]))
    schedule.compute_inline(schedule.get_sblock("moved"))
    special = tvm.runtime.tensor(np.array([np.nan, np.inf, -np.inf, 1], "float32"))
    out = tvm.runtime.tensor(np.ones(4, "float32"))
    tvm.compile(preparation.prepared(schedule.mod), target="llvm")["main"](special, out)
    assert out.numpy().tolist() == [0.0] * 4


GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})


def program() -> tvm.IRModule:
    """An exp, and an integer divided by data."""
    n, d = (te.placeholder((4,), "int32", name) for name in "nd")
    x = te.placeholder((4,), "float32", "x")
    out = te.compute(
        (4,), lambda i: te.exp(x[i]) * x[i] + tirx.floordiv(n[i], d[i]).astype("float32")
    )
    return tvm.IRModule({"main": te.create_prim_func([n, d, x, out])})


def test_networks_prepare_theirs_for_their_device() -> None:
    for target, expected in ((TARGET, "felix.PreparedForCPU"), (GPU, "felix.PreparedForCUDA")):
        names = [each.info.name for each in executable._pipeline(target).passes]
        assert [name for name in names if name.startswith("felix.PreparedFor")] == [expected]


def test_all_is_done_and_as_a_pass_as_well() -> None:
    mod = program()
    prepared = preparation.prepared(mod)
    assert tvm_ffi.structural_equal(preparation.PREPARED(mod), prepared, map_free_vars=True)
    assert "T.exp" in mod.script() and "T.exp(" not in prepared.script()
    n, d = np.array([7, 7, -7, -(2**31)], "int32"), np.array([2, 0, -1, -1], "int32")
    x, out = np.zeros(4, "float32"), tvm.runtime.tensor(np.zeros(4, "float32"))
    given = [tvm.runtime.tensor(each) for each in (n, d, x)]
    tvm.compile(prepared, target="llvm")["main"](*given, out)  # a trap would end the process
    assert out.numpy()[[0, 2, 3]].tolist() == [3.0, 7.0, -(2.0**31)]
