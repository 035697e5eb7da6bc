"""Inverses of index maps, and reshapes that TVM inlines into what they read."""

from __future__ import annotations

import itertools

import pytest
import sympy
from tvm import te, topi

from felix.errors import UnsupportedSchedule
from felix.sketch import sketch as sketching
from felix.symbolic import index_expr, inverse
from felix.symbolic.expr import FloorDiv, FloorMod, Minimum
from felix.task import Task
from felix.verify import compare
from tests.support import legal_rows

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
    report = compare.check_rows(sketch, legal_rows.draw(sketch, 1, seed=0))
    assert (report.checked, report.mismatches) == (1, ())
    ((_, block),) = sketch.symbolic(()).walk()
    assert len(block.store.target.indices) == len(shape)


def test_a_reshape_after_a_product_is_inlined_into_the_copy_of_its_tile() -> None:
    x, y = te.placeholder((16, 16), name="x"), te.placeholder((16, 16), name="y")
    sketch = sketching.sketches(
        Task.from_te([x, y, topi.reshape(topi.nn.dense(x, y), (4, 4, 16))], "cuda")
    )[0]
    report = compare.check_rows(sketch, legal_rows.draw(sketch, 2, seed=0))
    assert (report.checked, report.mismatches) == (2, ())
    program = sketch.symbolic(())
    stored = program.block("T_matmul_NT_local").store
    i, j = stored.value.loads()[0].indices
    assert stored.target.indices == (FloorDiv(i, 4), FloorMod(i, 4), j)
