"""Indices that resizing, pads and shuffles compute: read, evaluated, and compared with TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

from felix.errors import UnsupportedSchedule
from felix.features import iterators
from felix.sketch import sketch as sketching
from felix.symbolic import index_expr
from felix.task import Task
from felix.verify import accesses, compare
from tests.corpus import outcome
from tests.support import legal_rows

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
    expected = accesses.evaluate(index, {V: points})
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
    report = compare.check_rows(sketch, legal_rows.draw(sketch, 1, seed=0))
    assert (report.checked, report.mismatches) == (1, ())


@pytest.mark.parametrize(("condition", "n_read"), [(lambda i: i < 5, 2), (lambda i: i < 99, 1)])
def test_constant_indices_behind_a_condition_are_counted(condition: Any, n_read: int) -> None:
    x = te.placeholder((8,), name="x")
    y = te.compute((20,), lambda i: tirx.if_then_else(condition(i), x[1], x[6]), name="y")
    (sketch,) = sketching.sketches(Task.from_te([x, y], "llvm"))
    raw = sketch.formulas.raw(legal_rows.draw(sketch, 1, seed=0))[0, 0]
    assert raw[list(sketch.formulas.names).index("buf1.unique_bytes")] == 4 * n_read
