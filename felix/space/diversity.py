"""Which sketches of a large design space are used.

Each tiled product of a chain multiplies the number of MetaSchedule's sketches by three on a CPU:
attention has 81, and their formulas would take longer than measuring. Of more than a limit those
are taken that differ most: first the first one, then again and again the one whose least
difference from those taken is greatest. The difference of two sketches is the number of
instructions that only one of them has; an instruction is the same that does the same to the same
loops, whatever its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from felix.symbolic import interpret
from felix.tir.design_space import variants

#: Sketches of a task's own program, and of each variant, that are used.
MAX_STOCK, MAX_VARIANT = 16, 2


class HasVariant(Protocol):
    """A sketch, as far as it matters here."""

    @property
    def variant(self) -> variants.Variant | str:
        """The program that it schedules, or the name of what it is instead."""


_Sketch = TypeVar("_Sketch", bound=HasVariant)


def searched(sketches: Sequence[_Sketch]) -> list[_Sketch]:
    """The sketches of a task that are worth a search.

    Those of programs that others replace are left out, but for the first of the task's own.
    """
    programs = [each.variant for each in sketches if isinstance(each.variant, variants.Variant)]
    is_replaced = any(program.replaces_stock for program in programs)
    n_own = 0
    result = []
    for sketch in sketches:
        n_own += sketch.variant == variants.STOCK
        left_out = is_replaced and n_own > 1 and sketch.variant == variants.STOCK
        if isinstance(sketch.variant, variants.Variant):
            left_out = left_out or sketch.variant.is_replaced
        if not left_out:
            result.append(sketch)
    return result


def diverse(sketches: Sequence[Sequence[interpret.Instruction]], limit: int) -> list[int]:
    """Positions of at most `limit` sketches, ascending."""
    if len(sketches) <= limit:
        return list(range(len(sketches)))
    effects = [_effects(instructions) for instructions in sketches]
    chosen = [0]
    nearest = np.array([len(effects[0] ^ each) for each in effects])
    while len(chosen) < limit:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, [len(effects[chosen[-1]] ^ each) for each in effects])
    return sorted(chosen)


def _effects(instructions: Sequence[interpret.Instruction]) -> frozenset[int]:
    """A hash of each instruction: its kind, its attributes, and the hashes of its operands."""
    values: dict[interpret.Ref, int] = {}

    def hashed(operand: Any) -> Any:
        if isinstance(operand, interpret.Ref):
            return values[operand]
        return tuple(map(hashed, operand)) if isinstance(operand, tuple) else operand

    effects = set()
    for inst in instructions:
        effect = hash((inst.kind, hashed(inst.attrs), hashed(inst.inputs)))
        effects.add(effect)
        for number, output in enumerate(inst.outputs):
            values[output] = hash((effect, number))
    return frozenset(effects)
