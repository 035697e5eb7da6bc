"""MetaSchedule's rules on a program that schedule primitives were applied to.

TVM's PostOrderApply begins with a module. Here it begins with a schedule, so that what was applied
before stays in the traces, and blocks that it made are visited like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
#: The rule that samples compute locations.
_MOVING = "RandomComputeLocation"


def apply(
    schedule: tvm.s_tir.Schedule,
    rules: Sequence[ms.ScheduleRule],
    prefix: Prefix,
    added: Collection[str] = (),
) -> list[tvm.s_tir.Schedule]:
    """The schedules that the rules make of every block, one rule after another.

    A rule that fails on a block leaves it as it is.

    Args:
        schedule: after the prefix.
        added: names of the blocks that the prefix made.
    """
    names = blocks.names(schedule.mod["main"])
    visited = [(name, schedule.get_sblock(name, func_name="main")) for name in reversed(names)]
    schedules = [schedule]
    for rule, names_of_rule in _steps(rules, prefix, names, added):
        for name, block in visited:
            if name in names_of_rule:
                schedules = [m for each in schedules for m in _applied(rule, each, name, block)]
    return schedules


def _steps(
    rules: Sequence[ms.ScheduleRule],
    prefix: Prefix,
    names: Collection[str],
    added: Collection[str],
) -> Iterator[tuple[Rule, Collection[str]]]:
    """The rules in order, each with the blocks that it is applied to."""
    for rule in rules:
        kind = type(rule).__name__
        if kind == _FINISHING and prefix.before_finishing is not None:
            yield prefix.before_finishing, names if prefix.only is None else [prefix.only]
        excepted: set[str] = set()
        if kind == _MOVING and prefix.is_at_root:
            excepted = set(added)
        elif kind in prefix.without:
            excepted = {*added, *([] if prefix.only is None else [prefix.only])}
        yield rule.apply, set(names) - excepted


def _applied(
    rule: Rule, schedule: tvm.s_tir.Schedule, name: str, block: SBlockRV
) -> Sequence[tvm.s_tir.Schedule]:
    if name not in blocks.names(schedule.mod["main"]):
        return [schedule]
    try:
        return list(rule(schedule.copy(), block))
    except grammar.SCHEDULE_ERRORS:
        return [schedule]
