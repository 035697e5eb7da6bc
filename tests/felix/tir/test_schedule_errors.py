"""Which failures of a rule on a block are TVM's to have, and which are ours to see."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from felix import workloads
from felix.tir.design_space import post_order
from felix.tir.design_space.variants import STOCK, Prefix, variant


def applied(error: Exception) -> list[tvm.s_tir.Schedule]:
    """The schedules of a product whose own rule raises an error on every block."""

    def failing(schedule: tvm.s_tir.Schedule, block: Any) -> list[tvm.s_tir.Schedule]:
        raise error

    schedule = tvm.s_tir.Schedule(workloads.parse("gemm:8,8,8", target="llvm").mod)

    class ParallelizeVectorizeUnroll:
        def apply(self, schedule: Any, block: Any) -> list[Any]:
            return [schedule]

    prefix = Prefix(STOCK, variant.nothing, before_finishing=failing)
    return post_order.apply(schedule, [ParallelizeVectorizeUnroll()], prefix)


@pytest.mark.parametrize("error", [IndexError("list"), ValueError("no"), RuntimeError("TVM")])
def test_a_rule_that_fails_leaves_the_block(error: Exception) -> None:
    assert len(applied(error)) == 1


def test_a_mistake_in_a_rule_of_ours_is_seen() -> None:
    with pytest.raises(AttributeError, match="no attribute"):
        applied(AttributeError("no attribute 'foo'"))
