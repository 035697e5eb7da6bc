"""MetaSchedule's rules on a program that schedule primitives were applied to.

TVM's PostOrderApply begins with a module. Here it begins with a schedule, so that what was applied
before stays in the traces, and blocks that it made are visited like any other.

Not every alternative of every block meets every other. Where a rule of TVM gives several schedules
(tiling with and without a cached result, say), each such block multiplies the space: eight
products of a chain have 3^8 schedules, six softmaxes 3^12, which takes minutes and all memory. Of
more than `MAX_FULL` schedules only some are made, one at a time: the blocks with most work meet in
all their alternatives, the others all take their first alternative, or all their second, and so
on. Which these are follows from the program alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import SBlockRV

from felix.tir import grammar
from felix.tir.design_space import blocks
from felix.tir.design_space.variants import Prefix, Rule

#: The first of the rules that need every block at its place.
_FINISHING = "ParallelizeVectorizeUnroll"
#: The rule that samples compute locations.
_MOVING = "RandomComputeLocation"
#: Schedules of a variant that has too many to be made, at most; few are used (`space.diversity`).
MAX_CHOSEN = 16

_Schedules: TypeAlias = Sequence[tvm.s_tir.Schedule]


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A rule that is applied to a block."""

    place: Place
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
    (`some`).

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

    def one(choice: Choice, counts: dict[Place, int]) -> _Schedules:
        return [_one(schedule, steps, choice, counts)]

    chosen = some(schedule.mod, one, MAX_CHOSEN)
    if chosen is not None:
        return chosen
    schedules = [schedule]
    for step in steps:
        schedules = [made for each in schedules for made in _applied(step, each)]
    return schedules


def _one(
    schedule: tvm.s_tir.Schedule, steps: Sequence[_Step], choice: Choice, counts: dict[Place, int]
) -> tvm.s_tir.Schedule:
    """The schedule of a choice; notes how many alternatives there are where."""
    for step in steps:
        made = _applied(step, schedule) or [schedule]
        counts[step.place] = len(made)
        schedule = taken(choice, step.place, made)
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


#: Schedules of a space that is made as TVM makes it, at most.
MAX_FULL = 256
#: Alternatives that the rules of TVM give of one block, at most.
_MAX_OF_BLOCK = 3

#: A rule, by its number, at a block.
Place: TypeAlias = tuple[int, str]
#: Which alternative is taken where; the first where none is named, the last of fewer.
Choice: TypeAlias = Mapping[Place, int]
#: Makes the schedule of a choice; it notes how many alternatives there are where.
Make: TypeAlias = Callable[[Choice, dict[Place, int]], Sequence[s_tir.Schedule]]


def some(mod: tvm.IRModule, make: Make, limit: int) -> list[s_tir.Schedule] | None:
    """Some schedules of a program's space; None if all are few enough to be made.

    Args:
        mod: the program.
        make: called for each of them.
        limit: of their number.
    """
    n_reductions = sum(map(_is_reduction, blocks.realizes(mod["main"])))
    if int(_MAX_OF_BLOCK**n_reductions) <= MAX_FULL:  # their alternatives cannot be too many
        return None
    counts: dict[Place, int] = {}
    make({}, counts)
    if math.prod(counts.values()) <= MAX_FULL:
        return None
    return [each for choice in _choices(mod, counts, limit) for each in make(choice, {})]


def taken(choice: Choice, place: Place, every: Sequence[s_tir.Schedule]) -> s_tir.Schedule:
    """The chosen one of the alternatives at a place."""
    return every[min(choice.get(place, 0), len(every) - 1)]


def _choices(mod: tvm.IRModule, counts: Mapping[Place, int], limit: int) -> Iterator[Choice]:
    """All alternatives of where most work is, with the same of all others."""
    every = (each.block for each in blocks.realizes(mod["main"]))
    work = {str(block.name_hint): grammar.extent(block) for block in every}  # how often each runs
    places = sorted((p for p, n in counts.items() if n > 1), key=lambda p: -work.get(p[1], 0))
    n_uniform = max(counts[place] for place in places)
    n_free = 0
    while n_uniform * math.prod(counts[place] for place in places[: n_free + 1]) <= limit:
        n_free += 1
    free, others = places[:n_free], places[n_free:]
    for number in range(n_uniform):
        uniform = {place: min(number, counts[place] - 1) for place in others}
        for each in itertools.product(*(range(counts[place]) for place in free)):
            yield uniform | dict(zip(free, each, strict=True))


def _is_reduction(realize: s_tir.SBlockRealize) -> bool:
    return any(each.iter_type == grammar.REDUCE for each in realize.block.iter_vars)
