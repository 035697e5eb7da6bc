"""MetaSchedule's default schedule rules, each of which may fail on a block without harm.

A rule of TVM that fails on a block (CrossThreadReduction after a tiled product indexes a list
without a check, MultiLevelTiling computes a consumer of two products at one of them) would end the
whole design space, and one that leaves an unsound program (AutoInline moves a block into a
producer that others read) would spoil it. Here the block is left as it was, and the other rules
go on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import tvm
from tvm import s_tir, tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule
from tvm.s_tir.schedule import SBlockRV, Schedule

from felix import errors
from felix.tir import grammar
from felix.tir.design_space import blocks, post_order

_LOGGER = logging.getLogger(__name__)
#: Largest innermost tile of MetaSchedule's default for CPUs.
_MAX_INNERMOST = 64


def guarded(kind: str) -> list[ms.ScheduleRule]:
    """The default rules of a kind of target, in their order, guarded."""
    return [_Guarded([rule, *_alternatives(rule, kind)]) for rule in ms.ScheduleRule.create(kind)]


def _alternatives(rule: ms.ScheduleRule, kind: str) -> list[ms.ScheduleRule]:
    """What to try where the rule fails: tiling that leaves consumers where they are."""
    if kind == "llvm" and isinstance(rule, ms.schedule_rule.MultiLevelTiling):
        return [ms.schedule_rule.MultiLevelTiling("SSRSRS", max_innermost_factor=_MAX_INNERMOST)]
    return []


class _Rule(PyScheduleRule):  # type: ignore[misc]  # TVM's class has no types
    """The base of the rules here."""


@derived_object
class _Guarded(_Rule):
    """The first of several rules that does not fail on a block.

    Args:
        rules: in the order in which they are tried.
    """

    def __init__(self, rules: list[ms.ScheduleRule]) -> None:
        super().__init__()
        self._rules = rules

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        for rule in self._rules:
            rule._initialize_with_tune_context(context)

    def apply(self, sch: Schedule, block: SBlockRV) -> list[Schedule]:
        for rule in self._rules:
            try:
                results = list(rule.apply(sch.copy(), block))
            except grammar.SCHEDULE_ERRORS as error:
                _LOGGER.debug("%s fails: %s", rule, grammar.first_line(error))
                continue
            # a program is sound, or what it was before the rule, as most are
            if all(each.mod.same_as(sch.mod) or is_sound(each.mod) for each in results):
                return results
        return [sch]

    def clone(self) -> ms.ScheduleRule:
        return _Guarded([rule.clone() for rule in self._rules])


def deciding(
    rules: Sequence[ms.ScheduleRule],
    choice: post_order.Choice,
    counts: dict[post_order.Place, int],
) -> list[ms.ScheduleRule]:
    """The rules, each of which gives the chosen one of its schedules alone.

    Args:
        rules: in their order.
        choice: of a schedule of the space.
        counts: takes how many there are where.
    """
    custom = ms.schedule_rule.ApplyCustomRule  # TVM knows it by its type
    return [
        rule if isinstance(rule, custom) else _Deciding(rule, number, choice, counts)
        for number, rule in enumerate(rules)
    ]


@derived_object
class _Deciding(_Rule):
    """A rule that gives one of its schedules of each block.

    Args:
        rule: gives them.
        number: of the rule in its places.
        choice, counts: as in `deciding`.
    """

    def __init__(
        self,
        rule: ms.ScheduleRule,
        number: int,
        choice: post_order.Choice,
        counts: dict[post_order.Place, int],
    ) -> None:
        super().__init__()
        self._rule, self._number = rule, number
        self._choice, self._counts = choice, counts

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self._rule._initialize_with_tune_context(context)

    def apply(self, sch: Schedule, block: SBlockRV) -> list[Schedule]:
        place = (self._number, str(sch.get(block).name_hint))
        results = list(self._rule.apply(sch, block))
        self._counts[place] = len(results)
        return [post_order.taken(self._choice, place, results)]

    def clone(self) -> ms.ScheduleRule:
        return _Deciding(self._rule.clone(), self._number, self._choice, self._counts)


def is_sound(mod: tvm.IRModule) -> bool:
    """Whether every buffer of a scheduled program is declared.

    TVM's AutoInline moves a block into its producer although others read the producer, too, whose
    buffer is then gone.
    """
    return bool(s_tir.analysis.verify_well_formed(mod["main"], assert_mode=False))


def check_reductions(mod: tvm.IRModule) -> None:
    """See that TVM can lower the reductions that a schedule spreads over threads of a GPU.

    It knows few operators there, each with the start that changes nothing: no maximum that starts
    at 0, no `any` and `all`. A reduction whose guard joins its terms with a spatial loop it leaves
    as it is, without an error: all threads would then store to one element at once.

    Raises:
        UnsupportedSchedule: it cannot, whatever the schedule's decisions.
    """
    try:
        lowered = s_tir.transform.LowerCrossThreadReduction()(mod)
    except grammar.SCHEDULE_ERRORS as error:
        raise errors.UnsupportedSchedule(
            "TVM cannot spread the reduction over threads, by its operator or what it starts from"
        ) from error
    if _is_racing(lowered["main"]):
        raise errors.UnsupportedSchedule(
            "TVM cannot spread the reduction over threads: its last part is shorter"
        )


def _is_racing(func: tirx.PrimFunc) -> bool:
    """Whether a block that starts and combines terms still has threads that share its results."""
    threads = {
        loop.loop_var
        for loop in grammar.nodes(func.body, tirx.For)
        if loop.thread_binding is not None
        and str(loop.thread_binding.thread_tag).startswith("threadIdx")
    }
    return any(
        realize.block.init is not None and threads & {*blocks.reduced_variables(realize)}
        for realize in grammar.nodes(func.body, s_stmt.SBlockRealize)
    )
