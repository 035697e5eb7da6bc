"""What expressions show of their values; spans; indices of resizing, pads and shuffles.

How much work the symbolic program of nested compute locations takes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import sympy
from tvm import te, tirx, topi

import felix
from felix.errors import UnsupportedSchedule
from felix.features import iterators
from felix.space import sketch as sketching
from felix.symbolic import expr, index_expr, inverse, scalar
from felix.symbolic.expr import FloorDiv, FloorMod, Minimum
from felix.task import Task
from felix.tir import numeric
from tests.corpus import outcome
from tests.support import legal_rows

X, Y = expr.variable("x"), expr.variable("y")


def test_rounding_of_integers_disappears() -> None:
    for whole in (expr.CeilDiv(X, Y), expr.FloorMod(X, Y), X * Y):
        assert expr.Floor(whole) is whole and expr.Ceiling(whole) is whole


def test_rounding_of_picked_fractions_stays() -> None:
    fractions = (
        expr.Minimum(X / 3, Y),
        expr.Maximum(Y, X / 3),
        expr.Absolute(X / 3 - Y),
        expr.Select(expr.Less(X, Y), X / 2, Y),
    )
    for fraction in fractions:
        assert isinstance(expr.Floor(fraction), expr.Floor)
        assert isinstance(expr.Ceiling(fraction), expr.Ceiling)


def test_nonnegative_is_what_is_visibly_so() -> None:
    a, b = expr.FloorMod(X, Y), expr.Maximum(X, Y)
    for value in (X, X * Y + 3, X / Y, a * X + b, expr.Select(expr.Less(X, Y), X, a), Y**2):
        assert expr.is_nonnegative(value) and expr.Absolute(value) is value
    for value in (X - Y, -X, X * (Y - 1) - 1, expr.Minimum(X - Y, X)):
        assert not expr.is_nonnegative(value)
        assert isinstance(expr.Absolute(value), expr.Absolute)


def test_the_span_of_a_number_is_the_product_of_the_extents_of_its_components() -> None:
    assert scalar.spread(Y, X, Y) == X * Y
    for span, extent, coefficient in ((4, 3, 4), (4, 3, 5), (2, 5, 4), (3, 2, -2), (1, 7, 1)):
        values = {abs(coefficient) * i for i in range(extent)}
        assert scalar.spread(span, extent, coefficient) == max(values) + span
    assert scalar.spread(Y, X, -Y) == Y + (X - 1) * Y


@pytest.mark.parametrize(
    "value",
    [
        X * (Y - 1),
        (X + 1) ** 2 / Y,
        3 * X * Y - X + 1,
        expr.CeilDiv(X * (Y + 1), Y + 2) * (X + Y),
        sympy.Integer(4),
        X / (X * Y + Y),
    ],
    ids=str,
)
def test_expanded_is_what_sympy_expands(value: sympy.Expr) -> None:
    assert expr.expanded(value) == sympy.expand(value)


def test_expanding_makes_a_part_once_however_often_it_occurs() -> None:
    value, depth = X * (Y + 1), 10
    for _ in range(depth):
        value = expr.Maximum(value + X, value * Y)
    before = _n_operators()
    made = expr.expanded(value)
    assert _n_operators() - before == depth
    assert made == sympy.expand(value)


def _n_operators() -> int:
    """How often an operator was asked for so far."""
    asked = expr._interned.cache_info()
    return asked.hits + asked.misses


def test_equal_operators_are_one_object_however_long_ago_the_first_was_made() -> None:
    first = expr.Maximum(X + Y, X * Y)
    expr._interned.cache_clear()
    assert expr.Maximum(X + Y, X * Y) is first


@pytest.mark.slow("expands 625 polynomials")
def test_one_value_is_at_least_another_where_no_coefficient_over_1_is_negative() -> None:
    """Every polynomial of small coefficients, against the expansion itself."""
    for a, b, c, d in itertools.product(range(-2, 3), repeat=4):
        value = a * X * Y + b * X + c * Y**2 + d
        over = sympy.Poly(value.subs({X: X + 1, Y: Y + 1}, simultaneous=True), X, Y)
        assert iterators._at_least(value, sympy.Integer(0)) == all(k >= 0 for k in over.coeffs())
    assert not iterators._at_least(X, X / Y)


@pytest.mark.slow("reads programs of many windows")
def test_work_does_not_multiply_with_the_depth_of_chained_windows() -> None:
    """Three pools, each computed in a loop of the next: about 1,300 operators are asked for.

    A walk of the extents as trees would ask for 20,000, and for each further pool several times as
    many.
    """
    x = te.placeholder((1, 8, 16, 16), name="x")
    pooled = x
    for _ in range(3):
        pooled = topi.nn.pool2d(pooled, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "max")
    (sketch,) = [
        each
        for each in felix.trace_sketches(felix.Task.from_te([x, pooled], "llvm -num-cores 4"))
        if each.index == 8
    ]
    before = _n_operators()
    sketch.symbolic((1, 5, 5, 5, 9))
    assert _n_operators() - before < 5_000


# ------------------------------------------------ indices that resizing, pads and shuffles compute


EXTENT = 24
V = tirx.Var("v", "int32")
FLOAT = tirx.Cast("float32", V)


def half_pixel(scale: float) -> Any:
    return (FLOAT + tirx.const(0.5, "float32")) * tirx.const(scale, "float32") - tirx.const(
        0.5, "float32"
    )


def whole(value: Any) -> Any:
    return tirx.Cast("int32", value)


INDICES = {
    "floor": whole(tirx.floor(half_pixel(12 / 17))),
    "ceil": whole(tirx.ceil(half_pixel(12 / 17))),
    "round": whole(tirx.round(half_pixel(5 / 12))),
    "truncated": whole(FLOAT * tirx.const(15 / 31, "float32")),
    "truncated below 0": whole(half_pixel(0.25)),
    "clamped": tirx.max(tirx.min(whole(tirx.floor(half_pixel(0.5))), 5), 0),
    "clamped as float": whole(tirx.floor(tirx.max(half_pixel(0.5), tirx.const(0.0, "float32")))),
    "compared": tirx.if_then_else(half_pixel(0.5) < tirx.const(3.2, "float32"), V, 0),
    "divided": tirx.truncdiv(V, 2) + tirx.truncmod(V, 5),
    "divided below 0": tirx.truncdiv(V - 7, 3),
    "remainder below 0": tirx.truncmod(V - 7, 3),
    "masked": 7 & V,
    "masked below 0": (V - 7) & 3,
    "shifted": (V >> 2) + (V << 1),
    "shifted below 0": (V - 7) >> 1,
    "chosen": tirx.if_then_else(V >= 22, 41 - V, tirx.if_then_else(V < 2, 1 - V, V - 2)),
    "selected": tirx.Select(tirx.And(V > 2, tirx.Not(V > 9)), V, V - 1),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_an_index_has_the_values_it_has_in_tir(index: Any) -> None:
    symbol = index_expr.iter_symbol("v")
    points = np.arange(EXTENT)
    read = index_expr.load_index(index, {V: symbol})
    expected = numeric.evaluate(index, {V: points})
    np.testing.assert_array_equal(index_expr.evaluate(read, {symbol: points}), expected)


@pytest.mark.parametrize(
    "index",
    [
        whole(tirx.exp(FLOAT)),
        whole(tirx.floor(FLOAT * FLOAT * tirx.const(0.3, "float32") / FLOAT)),
        tirx.popcount(V),
        V & 6,
        V >> V,
    ],
)
def test_what_no_rule_reads_is_refused(index: Any) -> None:
    with pytest.raises(UnsupportedSchedule):
        index_expr.load_index(index, {V: index_expr.iter_symbol("v")})


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize(
    "name",
    [
        "resize_nearest_odd",
        "resize_linear",
        "mirror_pad",
        "space_to_depth",
        "pool_grad",
        "replicate_pad",
    ],
)
def test_programs_with_computed_indices_are_what_tvm_makes(name: str, target: str) -> None:
    result = outcome.of(name, target, rows=1)
    assert (result.kind, result.rows, result.message) == (outcome.Kind.MODELLED, 1, "")


def test_the_elements_that_a_resize_reads_are_counted() -> None:
    """Of 12 rows and 14 columns, all are read to make 17 and 31."""
    task = Task.from_te(outcome.PROGRAMS["resize_nearest_odd"](), "llvm")
    (sketch,) = sketching.sketches(task)
    names = list(sketch.formulas.names)
    raw = sketch.formulas.raw(legal_rows.draw(sketch, 1, seed=0))[0, 0]
    assert raw[names.index("buf1.unique_bytes")] == 8 * 12 * 14 * 4


def test_an_iterator_whose_start_depends_on_the_tiling_is_not_enumerated() -> None:
    start = index_expr.iter_symbol("tile")
    assert not iterators.Visited(start, 8, 8).dense


def test_vectors_look_past_a_quotient_in_a_sum() -> None:
    x = te.placeholder((6, 40), name="x")
    y = te.compute((2, 40), lambda i, j: x[i * 2 + j // 32, j % 32 + i], name="y")
    (sketch,) = sketching.sketches(Task.from_te([x, topi.exp(y)], "llvm"))
    legal_rows.checked(sketch, 1, seed=0)


@pytest.mark.parametrize(("condition", "n_read"), [(lambda i: i < 5, 2), (lambda i: i < 99, 1)])
def test_constant_indices_behind_a_condition_are_counted(condition: Any, n_read: int) -> None:
    x = te.placeholder((8,), name="x")
    y = te.compute((20,), lambda i: tirx.if_then_else(condition(i), x[1], x[6]), name="y")
    (sketch,) = sketching.sketches(Task.from_te([x, y], "llvm"))
    raw = sketch.formulas.raw(legal_rows.draw(sketch, 1, seed=0))[0, 0]
    assert raw[list(sketch.formulas.names).index("buf1.unique_bytes")] == 4 * n_read


A, B, C = (index_expr.iter_symbol(name) for name in "abc")
X, Y = (
    index_expr.iter_symbol(name) for name in ("x", "a")
)  # the name a twice: symbols are by block


@pytest.mark.parametrize(
    ("extents", "shape", "indices"),
    [
        ((4, 6), (24,), (6 * A + B,)),
        ((24,), (4, 6), (FloorDiv(A, 6), FloorMod(A, 6))),
        ((6, 10), (4, 15), (FloorDiv(10 * A + B, 15), FloorMod(10 * A + B, 15))),
        ((3, 5), (5, 3), (B, A)),
        ((2, 3, 4), (12, 2), (FloorMod(4 * B + C, 12), A)),
    ],
)
def test_the_inverse_takes_every_element_back(
    extents: tuple[int, ...], shape: tuple[int, ...], indices: tuple[sympy.Expr, ...]
) -> None:
    iters = tuple(zip((A, B, C), extents, strict=False))
    outer = tuple(zip((X, Y), shape, strict=False))
    taken_back = inverse.inverse(iters, indices, tuple(s for s, _ in outer), outer)
    for element in itertools.product(*map(range, shape)):
        point = dict(zip((s for s, _ in outer), map(sympy.Integer, element), strict=True))
        values = {s: e.xreplace(point) for s, e in taken_back.items()}
        assert all(0 <= values[s] < extent for s, extent in iters)
        assert tuple(index.xreplace(values) for index in indices) == element


def test_a_map_that_is_no_bijection_has_none() -> None:
    with pytest.raises(UnsupportedSchedule, match="no bijection"):
        inverse.inverse(((A, 6),), (FloorDiv(A, 2),), (X,), ((X, 3),))


def test_a_tensor_cut_in_uneven_blocks_is_put_together() -> None:
    indices = (FloorMod(A, 4), FloorDiv(A, 4))
    assert inverse.inverse(((A, 7),), indices, (X, Y), ((X, 4), (Y, 2))) == {A: 4 * Y + X}


def test_an_index_that_tvm_cannot_invert_has_none() -> None:
    with pytest.raises(UnsupportedSchedule, match="through the index"):
        inverse.inverse(((A, 6),), (Minimum(A, 3),), (X,), ((X, 6),))


@pytest.mark.parametrize("shape", [(4, 8, 16), (512,), (8, 64), (16, 32)])
def test_a_reshape_is_inlined_as_tvm_does(shape: tuple[int, ...]) -> None:
    x = te.placeholder((32, 16), name="x")
    value = topi.reshape(topi.exp(topi.transpose(x)), shape)
    (sketch,) = sketching.sketches(Task.from_te([x, value], "cuda"))
    legal_rows.checked(sketch, 1, seed=0)
    ((_, block),) = sketch.symbolic(()).walk()
    assert len(block.store.target.indices) == len(shape)


def test_a_reshape_after_a_product_is_inlined_into_the_copy_of_its_tile() -> None:
    x, y = te.placeholder((16, 16), name="x"), te.placeholder((16, 16), name="y")
    sketch = sketching.sketches(
        Task.from_te([x, y, topi.reshape(topi.nn.dense(x, y), (4, 4, 16))], "cuda")
    )[0]
    legal_rows.checked(sketch, 2, seed=0)
    program = sketch.symbolic(())
    stored = program.block("T_matmul_NT_local").store
    i, j = stored.value.loads()[0].indices
    assert stored.target.indices == (FloorDiv(i, 4), FloorMod(i, 4), j)
