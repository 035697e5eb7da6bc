"""Programs whose buffers, blocks and iterators repeat names, or have names that TVM makes up."""

from __future__ import annotations

import pytest
from tvm import te, topi

from felix.sketch import sketch as sketching
from felix.symbolic import kernels
from felix.task import Task
from felix.verify import compare
from tests.corpus import outcome
from tests.support import legal_rows


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
