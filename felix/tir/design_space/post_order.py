"""MetaSchedule's rules on a program that schedule primitives were applied to.

TVM's PostOrderApply begins with a module. Here it begins with a schedule, so that what was applied
before stays in the traces, and blocks that it made are visited like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import tvm
from tvm.s_tir.schedule import SBlockRV

from felix.tir import grammar
from felix.tir.design_space import alternatives, blocks
from felix.tir.design_space.variants import Prefix, Rule

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms

#: The first of the rules that need every block at its place.
_FINISHING = "ParallelizeVectorizeUnroll"
#: The rule that samples compute locations.
_MOVING = "RandomComputeLocation"
#: Schedules of a variant that has too many to be made, at most; few are used (`sketch.diversity`).
MAX_CHOSEN = 16

_Schedules: TypeAlias = Sequence[tvm.s_tir.Schedule]


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A rule that is applied to a block."""

    place: alternatives.Place
    rule: Rule
    block: SBlockRV


def apply(
    schedule: tvm.s_tir.Schedule,
    rules: Sequence[ms.ScheduleRule],
    prefix: Prefix,
    added: Collection[str] = (),
) -> list[tvm.s_tir.Schedule]:
    """The schedules that the rules make of every block, one rule after another.

    A rule that fails on a block leaves it as it is. Of very many schedules only some are made
    (`alternatives`).

    Args:
        schedule: after the prefix.
        added: names of the blocks that the prefix made.
    """
    names = blocks.names(schedule.mod["main"])
    visited = [(name, schedule.get_sblock(name, func_name="main")) for name in reversed(names)]
    steps = [
        _Step((number, name), rule, block)
        for number, (rule, names_of_rule) in enumerate(_steps(rules, prefix, names, added))
        for name, block in visited
        if name in names_of_rule
    ]

    def one(choice: alternatives.Choice, counts: dict[alternatives.Place, int]) -> _Schedules:
        return [_one(schedule, steps, choice, counts)]

    some = alternatives.some(schedule.mod, one, MAX_CHOSEN)
    if some is not None:
        return some
    schedules = [schedule]
    for step in steps:
        schedules = [made for each in schedules for made in _applied(step, each)]
    return schedules


def _one(
    schedule: tvm.s_tir.Schedule,
    steps: Sequence[_Step],
    choice: alternatives.Choice,
    counts: dict[alternatives.Place, int],
) -> tvm.s_tir.Schedule:
    """The schedule of a choice; notes how many alternatives there are where."""
    for step in steps:
        made = _applied(step, schedule) or [schedule]
        counts[step.place] = len(made)
        schedule = alternatives.taken(choice, step.place, made)
    return schedule


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


def _applied(step: _Step, schedule: tvm.s_tir.Schedule) -> Sequence[tvm.s_tir.Schedule]:
    if step.place[1] not in blocks.names(schedule.mod["main"]):
        return [schedule]
    try:
        return list(step.rule(schedule.copy(), step.block))
    except grammar.SCHEDULE_ERRORS:
        return [schedule]
