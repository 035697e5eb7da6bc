"""Reductions across threads that TVM cannot lower, for it would write them out several times.

TVM unrolls loops (UnrollLoop) before it lowers reductions across threads (LowerThreadAllreduce),
which refuses several reductions into one buffer. A reduction that is computed at its consumer has
the elements that the consumer needs in serial loops, and those must not be unrolled.
"""

from __future__ import annotations

from collections.abc import Iterator

from felix.symbolic import parallelize, scalar, usage
from felix.symbolic.ir import Loop, Program, Scalar

#: Statements of such a reduction beside its partial sums: their init, and the reduction itself.
_STATEMENTS = 2


def violations(program: Program) -> Iterator[Scalar]:
    """Conditions, 0 where no serial loop around a reduction across threads is unrolled.

    Decisions that TVM can lower by few statements may be refused too.
    """
    for loops, block in program.walk():
        if block.is_reduction and not block.is_init and any(map(_is_reduced_by_threads, loops)):
            yield from _unrolled(loops)


def _is_reduced_by_threads(loop: Loop) -> bool:
    is_threads = (loop.thread or "").startswith("threadIdx")
    return is_threads and not scalar.is_static(usage.is_data_parallel(loop), 1)


def _unrolled(loops: list[Loop]) -> Iterator[Scalar]:
    step: Scalar = 0
    for loop in loops:
        if loop.annotations.get(parallelize.PRAGMA_EXPLICIT):
            step = loop.annotations[parallelize.PRAGMA_STEP]
    serial = [(loop, usage.is_data_parallel(loop)) for loop in loops if loop.kind == "serial"]
    partial: Scalar = 1
    for loop, is_spatial in serial:
        partial = partial * scalar.select(is_spatial, 1, loop.extent)
    statements = partial + _STATEMENTS
    for loop, is_spatial in reversed(serial):
        extent = scalar.select(is_spatial, loop.extent, 1)
        statements = statements * extent
        yield scalar.both(scalar.less(1, extent), scalar.less_equal(statements, step))
