"""How much work the symbolic program of nested compute locations takes."""

from __future__ import annotations

from tvm import te, topi

import felix
from felix.symbolic import expr


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


def _n_operators() -> int:
    """How often an operator was asked for so far."""
    asked = expr._interned.cache_info()
    return asked.hits + asked.misses
