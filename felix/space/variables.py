"""The decision variables of a sketch, and which values a row of decisions may have.

Those of a trace are made from its sampling instructions, those of a template from its parameters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from felix.errors import DecisionError, UnsupportedSchedule
from felix.space import factorizations
from felix.symbolic import interpret, ir, scalar
from felix.symbolic.ir import Scalar


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """One decision.

    Attributes:
        name: unique in the sketch; the symbol of the formulas.
        kind: "tile" for a factor of a perfect tiling, else "choice".
        domain: values it may take, ascending; for a compute location those that ever occur.
        group: number of its sampling instruction or parameter; the factors of a group multiply to
            `extent`.
        extent: the tiled loop's extent; None for a choice.
        part: position in the group, outermost factor first.
        structural: it changes the structure of the program (a compute location).
        log_scale: search it on a logarithmic scale.
        label: what it decides, for people: the tiled loop with its block, the annotation, the
            block that is placed, the parameter. The factors of a group share it.
    """

    name: str
    kind: Literal["tile", "choice"]
    domain: tuple[int, ...]
    group: int
    extent: int | None
    part: int
    structural: bool
    log_scale: bool
    label: str = ""


def of_trace(
    program: ir.SymbolicProgram, instructions: Sequence[interpret.Instruction]
) -> tuple[Variable, ...]:
    """Variables of a trace; extents of tiled loops come from a run with the default locations.

    Args:
        program: the task's program before any instruction, which is changed.

    Raises:
        UnsupportedSchedule: a tiled loop has no constant extent.
    """
    variables: list[Variable] = []

    def decide(inst: interpret.Instruction, state: interpret.State) -> Sequence[Scalar]:
        made, defaults = _made(inst, state)
        if made:
            label = _label(inst, state, instructions)
            variables.extend(dataclasses.replace(each, label=label) for each in made)
        return defaults

    interpret.interpret(program, instructions, decide)
    return tuple(variables)


def columns_by_group(variables: Sequence[Variable]) -> dict[int, list[int]]:
    """Positions of the variables of each sampling instruction."""
    columns: dict[int, list[int]] = {}
    for i, variable in enumerate(variables):
        columns.setdefault(variable.group, []).append(i)
    return columns


def labels(variables: Sequence[Variable]) -> tuple[tuple[str, int], ...]:
    """What a row of decisions is, in its order: a label and how many decisions belong to it."""
    groups = columns_by_group(variables).values()
    return tuple((variables[columns[0]].label, len(columns)) for columns in groups)


def check(variables: Sequence[Variable], decisions: Sequence[int]) -> None:
    """See that a row of decisions lies within the domains.

    Raises:
        DecisionError: wrong length, a value outside of its variable's domain, or factors of
            another product than their extent.
    """
    if len(decisions) != len(variables):
        raise DecisionError(f"{len(variables)} decisions needed, {len(decisions)} given")
    for variable, value in zip(variables, decisions, strict=True):
        if int(value) not in variable.domain:
            raise DecisionError(f"{variable.name} = {value} is not one of {variable.domain}")
    for columns in columns_by_group(variables).values():
        first = variables[columns[0]]
        if first.kind == "tile":
            product = math.prod(int(decisions[c]) for c in columns)
            if product != first.extent:
                raise DecisionError(
                    f"the factors of {first.name[:-2]} multiply to {product}, not {first.extent}"
                )


def _made(
    inst: interpret.Instruction, state: interpret.State
) -> tuple[list[Variable], Sequence[Scalar]]:
    """Variables of one sampling instruction, and its outputs in the default structure."""
    group = inst.position
    if inst.kind == "SampleComputeLocation":
        domain = tuple(range(interpret.INLINE, _n_locations(state, inst)))
        return [_choice(f"location{group}", domain, group, structural=True)], [interpret.ROOT]
    if inst.kind == "SampleCategorical":
        domain = tuple(sorted({int(v) for v in inst.attrs[0]}))
        choices = [_choice(f"choice{group}", domain, group, structural=False)]
        return choices if len(domain) > 1 else [], [domain[-1]]
    n_parts, innermost = inst.attrs
    extent = scalar.plain(state.get(inst.inputs[0]).extent)
    if not isinstance(extent, int):
        raise UnsupportedSchedule("a tiled loop whose extent depends on other decisions")
    return _tiles(group, extent, n_parts, innermost), [extent] + [1] * (n_parts - 1)


def _tiles(group: int, extent: int, n_parts: int, innermost: int) -> list[Variable]:
    """The factors of one perfect tiling; the last is at most `innermost`, if that is above 0."""
    divisors = factorizations.divisors(extent)
    inner = tuple(d for d in divisors if d <= innermost) if innermost > 0 else divisors
    domains = [divisors] * (n_parts - 1) + [inner]
    return [
        Variable(f"tile{group}_{part}", "tile", domain, group, extent, part, False, True)
        for part, domain in enumerate(domains)
    ]


def _choice(name: str, domain: tuple[int, ...], group: int, structural: bool) -> Variable:
    positive = [v for v in domain if v > 0]
    log_scale = not structural and len(positive) > 1 and max(positive) >= 4 * min(positive)
    return Variable(name, "choice", domain, group, None, 0, structural, log_scale)


def _label(
    inst: interpret.Instruction,
    state: interpret.State,
    instructions: Sequence[interpret.Instruction],
) -> str:
    """What a sampling instruction decides, in a few words."""
    if inst.kind == "SampleComputeLocation":
        return f"location of {state.get(inst.inputs[0]).name}"
    if inst.kind == "SampleCategorical":
        users = (each for each in instructions if inst.outputs[0] in each.inputs)
        user = next(users, None)
        if user is None:
            return "choice"
        is_annotation = user.kind == "Annotate"
        return str(user.attrs[0]).rpartition(".")[2] if is_annotation else user.kind.lower()
    loop = "*".join(component.name for component in state.get(inst.inputs[0]).components)
    makers = (each for each in instructions if inst.inputs[0] in each.outputs)
    maker = next(makers, None)
    if maker is None or maker.kind != "GetLoops":
        return f"tile of {loop}"
    return f"tile of {loop} in {state.get(maker.inputs[0]).name}"


def _n_locations(state: interpret.State, inst: interpret.Instruction) -> int:
    """Number of loops a compute location may index.

    Loops around the first consumer; earlier locations only make nests deeper by the iterators of
    blocks moved before, which is allowed for.
    """
    block = state.get(inst.inputs[0])
    readers = interpret.consumers(state.program, block)
    depth = len(state.program.loops_of(readers[0])) if readers else 0
    slack = max((len(b.iters) for _, b in state.program.walk()), default=0)
    longest = max((len(loops) for loops, _ in state.program.walk()), default=0)
    return max(depth, longest) + slack
