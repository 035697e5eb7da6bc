"""MetaSchedule's default schedule rules, each of which may fail on a block without harm.

A rule of TVM that fails on a block (CrossThreadReduction after a tiled product indexes a list
without a check, MultiLevelTiling computes a consumer of two products at one of them) would end the
whole design space, and one that leaves an unsound program (AutoInline moves a block into a
producer that others read) would spoil it. Here the block is left as it was, and the other rules
go on.
"""

from __future__ import annotations

import logging

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule
from tvm.s_tir.schedule import SBlockRV, Schedule

from felix.tir import grammar
from felix.tir.design_space import soundness

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


@derived_object
class _Guarded(PyScheduleRule):  # type: ignore[misc]
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
            if all(soundness.is_sound(result.mod) for result in results):
                return results
        return [sch]

    def clone(self) -> ms.ScheduleRule:
        return _Guarded([rule.clone() for rule in self._rules])
