"""TVM's MetaSchedule context of a program, and the default design space of its target."""

from __future__ import annotations

import dataclasses
import logging
import sys
import types
from collections.abc import Iterator, Sequence

import tvm
from tvm.s_tir import meta_schedule as ms

from felix.tir import grammar
from felix.tir.design_space import blocks, post_order, schedule_rules, shared_memory, variants
from felix.tir.design_space.variants import Machine, Prefix, Variant

#: Schedules of a space that has too many to be made, at most.
MAX_CHOSEN = 64
_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class DesignSpace:
    """Schedules with sampling instructions, and the postprocessors of the target.

    Attributes:
        schedules: never empty; one that changes nothing where no rule of TVM applies.
        variant: the program that they schedule.
        mod: its module, of which the traces are.
    """

    schedules: tuple[tvm.s_tir.Schedule, ...]
    generator: ms.SpaceGenerator
    mod: tvm.IRModule
    variant: Variant = variants.STOCK


def generate(mod: tvm.IRModule, target: tvm.target.Target, *, name: str = "main") -> DesignSpace:
    """The default design space of a program.

    Where a rule of TVM fails, or leaves a program that reads what nothing stores, the space is
    made again with rules that fail on single blocks only. Of a space of very many schedules only
    some are made (`post_order`).
    """
    context = tune_context(mod, target, name=name)
    try:
        schedules = _generate(context)
        sound = all(schedule_rules.is_sound(schedule.mod) for schedule in schedules)
    except grammar.SCHEDULE_ERRORS:
        sound = False
    if not sound:
        context = tune_context(mod, target, name=name, guarded=True)
        try:
            schedules = _generate(context)
        except grammar.SCHEDULE_ERRORS:
            schedules = [tvm.s_tir.Schedule(context.mod, debug_mask="none")]
    return DesignSpace(tuple(schedules), context.space_generator, mod)


def _generate(context: ms.TuneContext) -> Sequence[tvm.s_tir.Schedule]:
    """The schedules that the rules of a context make, or some of very many."""

    def one(
        choice: post_order.Choice, counts: dict[post_order.Place, int]
    ) -> Sequence[tvm.s_tir.Schedule]:
        rules = schedule_rules.deciding(context.space_generator.sch_rules, choice, counts)
        generator = ms.space_generator.PostOrderApply(
            sch_rules=rules, postprocs=[], mutator_probs={}
        )
        generator._initialize_with_tune_context(context)
        return list(generator.generate_design_space(context.mod))

    some = post_order.some(context.mod, one, MAX_CHOSEN)
    if some is not None:
        return some
    return list(context.generate_design_space())


def generate_variants(
    mod: tvm.IRModule, target: tvm.target.Target, machine: Machine, *, name: str = "main"
) -> Iterator[DesignSpace]:
    """The design space of each variant of a program; those that TVM cannot make are left out."""
    for prefix in variants.of_program(mod, machine):
        program = mod if prefix.mod is None else prefix.mod
        context = tune_context(program, target, name=name)
        try:
            schedules = _generate_variant(program, context, prefix)
        except grammar.SCHEDULE_ERRORS as error:
            _LOGGER.debug("%s of %s fails: %s", prefix.variant, name, grammar.first_line(error))
            continue
        accepted = (each for each in schedules if prefix.accepts(each))
        sound = tuple(each for each in accepted if schedule_rules.is_sound(each.mod))
        if sound:
            yield DesignSpace(sound, context.space_generator, program, prefix.variant)


def _generate_variant(
    mod: tvm.IRModule, context: ms.TuneContext, prefix: Prefix
) -> list[tvm.s_tir.Schedule]:
    schedule = tvm.s_tir.Schedule(mod, seed=1, debug_mask="none")
    prefix.apply(schedule)
    added = set(blocks.names(schedule.mod["main"])) - set(blocks.names(mod["main"]))
    return post_order.apply(schedule, context.space_generator.sch_rules, prefix, added)


def tune_context(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    *,
    name: str = "main",
    strategy: ms.SearchStrategy | None = None,
    seed: int = 1,
    num_threads: int = 1,
    guarded: bool = False,
) -> ms.TuneContext:
    """A context over the default rules and postprocessors of the target's kind.

    Making a `TuneContext` imports every tensor intrinsic TVM knows, 20 s of script parsing that
    the default rules never use; an empty module stands in for them.

    The rules use static shared memory, so their kernels are legal up to its limit.

    Args:
        name: of the task, in TVM's messages.
        strategy: the search strategy that the context owns, if any.
        seed: TVM's random state.
        guarded: a rule that fails on a block leaves it as it is (`schedule_rules`).
    """
    sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))
    kind = target.kind.name
    logger = logging.getLogger("felix.tvm")
    logger.setLevel(logging.ERROR)
    return ms.TuneContext(
        mod=mod,
        target=shared_memory.static_target(target),
        space_generator=ms.space_generator.PostOrderApply(
            sch_rules=schedule_rules.guarded(kind) if guarded else kind,
            postprocs=kind,
            mutator_probs=kind,
        ),
        search_strategy=strategy,
        task_name=name,
        rand_state=seed,
        num_threads=num_threads,
        logger=logger,
    )
