"""MetaSchedule's rules on a program that schedule primitives were applied to.

TVM's PostOrderApply begins with a module. Here it begins with a schedule, so that what was applied
before stays in the traces, and blocks that it made are visited like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm.s_tir.schedule import SBlockRV

from felix.tir import grammar
from felix.tir.design_space import blocks
from felix.tir.design_space.variants import Prefix, Rule

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms

#: The first of the rules that need every block at its place.
_FINISHING = "ParallelizeVectorizeUnroll"


def apply(
    schedule: tvm.s_tir.Schedule, rules: Sequence[ms.ScheduleRule], prefix: Prefix
) -> list[tvm.s_tir.Schedule]:
    """The schedules that the rules make of every block, one rule after another.

    A rule that fails on a block leaves it as it is.

    Args:
        schedule: after the prefix.
    """
    names = blocks.names(schedule.mod["main"])
    visited = [(name, schedule.get_sblock(name, func_name="main")) for name in reversed(names)]
    schedules = [schedule]
    for rule, only in _steps(rules, prefix):
        for name, block in visited:
            if only in (None, name):
                schedules = [m for each in schedules for m in _applied(rule, each, name, block)]
    return schedules


def _steps(rules: Sequence[ms.ScheduleRule], prefix: Prefix) -> Iterator[tuple[Rule, str | None]]:
    """The rules in order, each with the only block that it is applied to, if there is one."""
    for rule in rules:
        if type(rule).__name__ == _FINISHING and prefix.before_finishing is not None:
            yield prefix.before_finishing, prefix.only
        yield rule.apply, None


def _applied(
    rule: Rule, schedule: tvm.s_tir.Schedule, name: str, block: SBlockRV
) -> Sequence[tvm.s_tir.Schedule]:
    if name not in blocks.names(schedule.mod["main"]):
        return [schedule]
    try:
        return list(rule(schedule.copy(), block))
    except grammar.TVM_ERRORS:
        return [schedule]
