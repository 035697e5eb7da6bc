"""A design space in which not every alternative of every block meets every other.

Where a rule of TVM gives several schedules (tiling with and without a cached result, say), each
such block multiplies the space: eight products of a chain have 3^8 schedules, six softmaxes 3^12,
which takes minutes and all memory. Of more than `MAX_FULL` schedules only some are made, one at a
time: the blocks with most work meet in all their alternatives, the others all take their first
alternative, or all their second, and so on. Which these are follows from the program alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import tvm
from tvm import s_tir, tirx

from felix.tir.design_space import blocks

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
    if not _may_be_too_many(mod):
        return None
    counts: dict[Place, int] = {}
    make({}, counts)
    if math.prod(counts.values()) <= MAX_FULL:
        return None
    return [each for choice in _choices(mod, counts, limit) for each in make(choice, {})]


def taken(choice: Choice, place: Place, every: Sequence[s_tir.Schedule]) -> s_tir.Schedule:
    """The chosen one of the alternatives at a place."""
    return every[min(choice.get(place, 0), len(every) - 1)]


def _may_be_too_many(mod: tvm.IRModule) -> bool:
    """Whether a program has so many reductions that their alternatives may be too many."""
    n_reductions = sum(map(_is_reduction, blocks.realizes(mod["main"])))
    return int(_MAX_OF_BLOCK**n_reductions) > MAX_FULL


def _choices(mod: tvm.IRModule, counts: Mapping[Place, int], limit: int) -> Iterator[Choice]:
    """All alternatives of where most work is, with the same of all others."""
    work = {str(each.block.name_hint): _work(each) for each in blocks.realizes(mod["main"])}
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
    return any(each.iter_type == tirx.IterVar.CommReduce for each in realize.block.iter_vars)


def _work(realize: s_tir.SBlockRealize) -> int:
    """How often a block runs."""
    return math.prod(int(each.dom.extent) for each in realize.block.iter_vars)
