"""Moves inside programs: simple indices, the same results."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from felix.frontend.programs import outlining


def heads(x, start):
    """Columns [start, start + 32) of x [1, 6, 96] as [4, 6, 8]: a row of 8 for each head."""
    part = topi.strided_slice(x, [0, 0, start], [1, 6, start + 32])
    split = topi.transpose(topi.reshape(part, (1, 6, 4, 8)), (0, 2, 1, 3))
    return topi.reshape(split, (4, 6, 8))


def product(a, b):
    k = te.reduce_axis((0, 8), "k")
    return te.compute(
        (4, 6, 6), lambda h, i, j: te.sum(a[h, i, k] * b[h, j, k], axis=k), name="scores"
    )


def results(func, *arrays):
    out = np.zeros([int(n) for n in func.params[-1].shape], "float32")
    tensors = [tvm.runtime.tensor(each) for each in (*arrays, out)]
    tvm.build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")(*tensors)
    return tensors[-1].numpy()


def test_a_product_reads_the_tensor_that_was_moved():
    x, y = te.placeholder((1, 6, 96), name="x"), te.placeholder((4, 6, 8), name="y")
    func = te.create_prim_func([x, y, product(heads(x, 32), y)])
    simple = outlining.inline_moves(func)
    text = simple.script()
    assert "x[0, v_i, v_h * 8 + v_k + 32]" in text
    assert "//" not in text and "sblock_alloc_buffer" not in text
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(shape, "float32") for shape in ((1, 6, 96), (4, 6, 8))]
    np.testing.assert_allclose(results(simple, *arrays), results(func, *arrays), rtol=1e-6)


def test_a_sum_still_reads_what_it_stores():
    x, y = te.placeholder((1, 6, 96), name="x"), te.placeholder((1, 6, 8), name="y")
    k = te.reduce_axis((0, 8), "k")
    moved = topi.reshape(topi.strided_slice(x, [0, 0, 0], [1, 6, 8]), (1, 6, 8))
    out = te.compute((1, 6), lambda b, i: te.sum(moved[b, i, k] * y[b, i, k], axis=k), name="out")
    simple = outlining.inline_moves(te.create_prim_func([x, y, out]))
    assert "out[v_b, v_i] = out[v_b, v_i] + " in simple.script()


@pytest.mark.parametrize("kind", ["alone", "elementwise", "gathered"])
def test_other_programs_stay_as_they_are(kind):
    x = te.placeholder((4, 6), name="x")
    rows = te.placeholder((3,), "int32", name="rows")
    tensors = {
        "alone": [x, topi.transpose(x)],
        "elementwise": [x, topi.exp(topi.tanh(x))],
        "gathered": [x, rows, topi.exp(topi.take(x, rows, axis=0, mode="fast"))],
    }[kind]
    func = te.create_prim_func(tensors)
    assert outlining.inline_moves(func).same_as(func)
    assert isinstance(func, tirx.PrimFunc)
