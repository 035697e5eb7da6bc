"""The sketches of a task: trace sketches of MetaSchedule's design spaces, and template sketches.

Both kinds have task, index, key, variant, hardware, variables, formulas, `sample`,
`is_applicable`, and `program(decisions)`, which is what is measured: a scheduled module, or a
generated program. What only a trace has, like `schedule`, raises UnsupportedSchedule of a template
sketch; `trace_sketches` lists sketches that have it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import tvm
from tvm.s_tir.schedule import Trace

from felix.errors import UnforeseenForm, UnsupportedSchedule
from felix.space import diversity, formulas
from felix.space.template_sketch import TemplateSketch
from felix.space.trace_sketch import TraceSketch
from felix.symbolic import interpret
from felix.target import Hardware, hardware
from felix.task import Task
from felix.templates import registry, template
from felix.tir import design_space
from felix.tir.design_space import schedule_rules, variants

#: A sketch of either kind.
Sketch: TypeAlias = TraceSketch | TemplateSketch
#: Called with one line about something that is left out.
OnLeftOut: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Modelled:
    """The trace sketches of a task, why others have no model, and how many traces there are."""

    sketches: list[TraceSketch]
    reasons: list[UnsupportedSchedule]
    n_traces: int


def trace_sketches(
    task: Task, machine: Hardware | None = None, on_left_out: OnLeftOut | None = None
) -> list[TraceSketch]:
    """The trace sketches of MetaSchedule's default design space for the task's target.

    Those of the task's program come first, then those of each variant. Templates are no part of
    them: `sketches` has those, too.

    One that cannot be modelled is left out, and of very many some are (`felix.space.diversity`);
    the others keep their numbers.

    Args:
        machine: limits and rates the formulas use; by default those of the task's target here.
        on_left_out: called with one line about each sketch that is left out.

    Raises:
        UnsupportedSchedule: no sketch can be modelled; the message says why.
        UnforeseenForm: the same, where a form that no rule was written for is a reason.
    """
    modelled = _modelled(task, machine or hardware(task.target), on_left_out)
    if not modelled.sketches:
        raise _none_modelled(task, modelled.reasons)
    return modelled.sketches


def sketches(
    task: Task, machine: Hardware | None = None, on_left_out: OnLeftOut | None = None
) -> list[Sketch]:
    """The sketches of a task: those of traces, then those of templates.

    The numbers of template sketches follow those of all traces. A program that no template
    recognises is left out of them: `on_left_out` is told why.

    Args, Raises: as `trace_sketches`; with a template sketch there need be no trace sketch.
    """
    machine = machine or hardware(task.target)
    modelled = _modelled(task, machine, on_left_out)
    templates = of_templates(task, machine, on_left_out, modelled.n_traces)
    if not modelled.sketches and not templates:
        raise _none_modelled(task, modelled.reasons)
    return [*modelled.sketches, *templates]


def of_templates(
    task: Task,
    machine: Hardware | None = None,
    on_left_out: OnLeftOut | None = None,
    first: int = 0,
) -> list[TemplateSketch]:
    """The template sketches of a task alone, without the time that trace sketches take.

    Args:
        machine, on_left_out: as `sketches`; no template at all is told, too.
        first: number of the first; in `every` they follow all traces.
    """
    machine = machine or hardware(task.target)
    try:
        with formulas.reported():
            matching = registry.templates_of(task.mod, task.target, machine)
    except UnsupportedSchedule as error:
        matching = template.Matching(reasons=(str(error),))
    if on_left_out is not None:
        for reason in matching.reasons:
            on_left_out(f"{task.name}: no generated kernel: {reason}")
    return [
        TemplateSketch(task, first + number, template, machine)
        for number, template in enumerate(matching.templates)
    ]


def fewest_kernels(task: Task, machine: Hardware | None = None) -> int | None:
    """Kernels of the trace sketch that has the fewest; None where no sketch can be modelled.

    Further sketches are not made once one is a single kernel. Sketches of very many are not left
    out, as in `trace_sketches`.
    """
    machine = machine or hardware(task.target)
    fewest = None
    with contextlib.suppress(UnsupportedSchedule):  # what ends the making of variants
        for space in _made_spaces(task, machine):
            for schedule in space.schedules:
                count = _n_kernels(schedule.mod)
                if fewest is None or count < fewest:
                    with contextlib.suppress(UnsupportedSchedule):
                        _trace_sketch(task, 0, schedule, space, machine)
                        fewest = count
                if fewest == 1:
                    return fewest
    return fewest


def _n_kernels(mod: tvm.IRModule) -> int:
    """Loop nests of a scheduled program, each of which is launched."""
    body = mod["main"].body.block.body
    return len(body.seq) if isinstance(body, tvm.tirx.SeqStmt) else 1


def _trace_sketch(
    task: Task,
    index: int,
    schedule: tvm.s_tir.Schedule,
    space: design_space.DesignSpace,
    machine: Hardware,
) -> TraceSketch:
    """The sketch of a schedule; raises UnsupportedSchedule where it cannot be modelled."""
    schedule_rules.check_reductions(schedule.mod)
    program = schedule.trace, space.generator, machine, space.variant, space.mod
    with formulas.reported():
        return TraceSketch(task, index, *program)


def _modelled(task: Task, machine: Hardware, on_left_out: OnLeftOut | None) -> _Modelled:
    """The trace sketches that can be modelled."""
    modelled: list[TraceSketch] = []
    reasons: list[UnsupportedSchedule] = []
    spaces, unforeseen = _spaces(task, machine)
    if unforeseen is not None:
        reasons.append(unforeseen)
        if on_left_out is not None:
            on_left_out(f"{task.name}: variants left out: {unforeseen}")
    for index, schedule, space in _schedules(spaces):
        try:
            modelled.append(_trace_sketch(task, index, schedule, space, machine))
        except UnsupportedSchedule as error:
            reasons.append(error)
            if on_left_out is not None:
                on_left_out(f"{task.name}: sketch {index} left out: {error}")
    return _Modelled(modelled, reasons, sum(len(space.schedules) for space in spaces))


def _none_modelled(task: Task, reasons: Sequence[UnsupportedSchedule]) -> UnsupportedSchedule:
    is_unforeseen = any(isinstance(error, UnforeseenForm) for error in reasons)
    kind = UnforeseenForm if is_unforeseen else UnsupportedSchedule
    return kind(f"{task.name}: {'; '.join(dict.fromkeys(map(str, reasons)))}")


def _spaces(
    task: Task, machine: Hardware
) -> tuple[list[design_space.DesignSpace], UnsupportedSchedule | None]:
    """The stock space, then those of the variants; and what ended the making of variants."""
    spaces: list[design_space.DesignSpace] = []
    try:
        spaces.extend(_made_spaces(task, machine))
    except UnsupportedSchedule as error:
        return spaces, error
    return spaces, None


def _made_spaces(task: Task, machine: Hardware) -> Iterator[design_space.DesignSpace]:
    """The stock space, then those of the variants, each made when it is asked for.

    Raises:
        UnsupportedSchedule: what ends the making of variants.
    """
    limits = variants.Machine(machine.cores, machine.is_gpu, machine.vector_lanes)
    yield design_space.generate(task.mod, task.target, name=task.name)
    with formulas.reported():
        yield from design_space.generate_variants(task.mod, task.target, limits, name=task.name)


def _schedules(
    spaces: Sequence[design_space.DesignSpace],
) -> Iterator[tuple[int, tvm.s_tir.Schedule, design_space.DesignSpace]]:
    """(number, schedule, space) of each space: diverse ones of many."""
    first = 0
    for space in spaces:
        traces = [schedule.trace for schedule in space.schedules]
        limit = diversity.MAX_STOCK if space is spaces[0] else diversity.MAX_VARIANT
        for number in _chosen(traces, limit):
            yield first + number, space.schedules[number], space
        first += len(traces)


def _chosen(traces: Sequence[Trace], limit: int) -> Sequence[int]:
    if len(traces) <= limit:
        return range(len(traces))
    return diversity.diverse([interpret.parse(trace) for trace in traces], limit)
