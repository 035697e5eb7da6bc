"""Bindings of expressions that TVM's vectorizer would read twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from felix.measure.cpu import preparation

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
    ours = result(preparation.at_roots(preparation.written_out(mod)))
    np.testing.assert_allclose(ours, result(mod), rtol=1e-5, atol=1e-5)


def test_tvm_refuses_some_of_them_as_they_are() -> None:
    """If it no longer does, the module can go."""
    with pytest.raises(tvm.error.InternalError, match="Let cannot bind"):
        result(preparation.written_out(scheduled(CASES["silu"])))


def test_a_program_without_bindings_stays() -> None:
    mod = scheduled(CASES["silu"])
    assert preparation.at_roots(mod)["main"].same_as(mod["main"])
