"""Which operators may become one program.

From each operator backwards: producers join one after another, breadth first, as long as the group
is one that schedules exist for.

- One contraction. Behind it elementwise operators of its shape, and moves of its whole result. In
  front of it only moves, views and casts: a tile would compute anything else again and again. Its
  operands are moved out of different tensors, as TVM copies a tile of each tensor, not of each
  read; for narrow elements there are generated kernels, which copy a tile of each read.
- Rows: reductions of the same number of rows, stitched in one kernel that has a row's intermediate
  values on chip, with elementwise operators before, between and behind them.
- Cheap operators alone.

A producer whose result others read, too, is computed twice if it joins: only cheap ones may, moves
and elementwise operators of one tensor.
"""

from __future__ import annotations

import collections
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from felix.frontend.programs.planning.graph import Graph, PossibleGroup, Role, candidate

#: Operators of a group; a program of many more has no schedule within the limits of a kernel.
MAX_OPERATORS = 32
#: Candidates of one root; the smaller ones come first.
MAX_OF_ROOT = 64
#: What may be in front of a contraction.
_PROLOGUES = frozenset({Role.MOVE, Role.VIEW, Role.CAST})
_MOVES = frozenset({Role.MOVE, Role.VIEW})
_ANCHORS = frozenset({Role.ROWS, Role.CONTRACTION})


def enumerate_all(graph: Graph, known: Iterable[Sequence[int]] = ()) -> list[PossibleGroup]:
    """The candidates of a graph, by root; every operator alone is one.

    Args:
        known: groups that are candidates whatever they are: other ways' say. The last
            operator of each gives the result.
    """
    every: dict[PossibleGroup, None] = {}
    for root in range(len(graph.operators)):
        every.update(dict.fromkeys(_of_root(graph, root)))
    every.update(dict.fromkeys(candidate(graph, members) for members in known))
    return sorted(every, key=lambda each: (each.root, len(each.members), sorted(each.members)))


def _of_root(graph: Graph, root: int) -> list[PossibleGroup]:
    """The candidates whose last operator is this one."""
    first = frozenset({root})
    queue, reached = collections.deque([first]), {first: None}
    while queue and len(reached) < MAX_OF_ROOT:
        members = queue.popleft()
        for value in sorted(graph.inputs(members), reverse=True):
            for producer in graph.makers[value] if value >= 0 else ():
                joined = _joined(graph, producer, members, root)
                if joined is not None and joined not in reached:
                    reached[joined] = None
                    queue.append(joined)
    return [candidate(graph, members) for members in reached]


def _joined(
    graph: Graph, producer: int, members: frozenset[int], root: int
) -> frozenset[int] | None:
    """A group with a producer, and all moves one behind the other that it ends; None if neither.

    Where such a chain is cut makes no difference: each of its values has as many elements.
    """
    chain = [producer]
    while chain[-1] >= 0 and graph.operators[chain[-1]].role in _MOVES:
        chain.append(graph.operators[chain[-1]].reads[0].value)
    moves = [number for number in chain[:-1] if number not in members]
    for joining in (moves, [producer]):
        grown = members
        for number in joining:
            if not _may_join(graph, number, grown, root):
                break
            grown |= {number}
        else:
            if joining:
                return grown
    return None


def _may_join(graph: Graph, producer: int, members: frozenset[int], root: int) -> bool:
    if producer < 0 or len(members) >= MAX_OPERATORS:
        return False
    operator = graph.operators[producer]
    if operator.role is Role.OPAQUE or graph.operators[root].role is Role.OPAQUE:
        return False
    value = graph.value(producer)
    within = members | {graph.value(number) for number in members}
    is_shared = value in graph.outputs or not graph.readers[value] <= within
    if is_shared and not operator.is_cheap:
        return False
    return _is_schedulable(graph, members | {producer})


def _is_schedulable(graph: Graph, members: frozenset[int]) -> bool:
    anchors = [number for number in members if graph.operators[number].role in _ANCHORS]
    roles = {graph.operators[number].role for number in anchors}
    if not anchors:
        return True
    if Role.CONTRACTION in roles:
        return len(anchors) == 1 and _is_around_contraction(graph, members, anchors[0])
    same_rows = len({graph.operators[number].n_rows for number in anchors}) == 1
    plain = all(
        graph.operators[number].role in (Role.ELEMENTWISE, Role.CAST, Role.ROWS, Role.VIEW)
        for number in members
    )
    return same_rows and plain and _elements_fit(graph, members, anchors)


def _elements_fit(graph: Graph, members: frozenset[int], anchors: Sequence[int]) -> bool:
    """Whether what is behind a reduction of rows has no elements but those of its rows."""
    shape = graph.operators[min(anchors)].shape
    behind = [graph.operators[number] for number in _behind(graph, members, min(anchors))]
    return all(
        each.role is not Role.VIEW
        and each.shape is not None
        and (each.role is Role.ROWS or each.shape == shape)
        for each in behind
    )


def _is_around_contraction(graph: Graph, members: frozenset[int], anchor: int) -> bool:
    behind = _behind(graph, members, anchor)
    shape = graph.operators[anchor].shape
    before = _before(graph, members, anchor)
    if any(graph.operators[number].role not in _PROLOGUES for number in before):
        return False
    sources = [_source(graph, members, read.value) for read in graph.operators[anchor].reads]
    is_narrow = graph.operators[anchor].is_narrow
    if before and not is_narrow and len(set(sources)) < len(sources):
        return False
    moved = False
    for number in sorted(behind):
        operator = graph.operators[number]
        if operator.role in (Role.MOVE, Role.VIEW):
            moved = True
            if _count(operator.shape) != _count(shape):
                return False
        elif operator.role in (Role.ELEMENTWISE, Role.CAST):
            if moved or operator.shape != shape:
                return False
        else:
            return False
    return all(
        graph.operators[number].role is not Role.GATHER for number in members - behind - before
    )


def _source(graph: Graph, members: frozenset[int], value: int) -> int:
    """Where the elements of an operand come from."""
    while value >= 0 and (makers := members.intersection(graph.makers[value])):
        value = graph.operators[min(makers)].reads[0].value
    return value


def _behind(graph: Graph, members: frozenset[int], anchor: int) -> set[int]:
    """The members that depend on the anchor."""
    behind: set[int] = set()
    for number in sorted(members):
        producers = graph.producers(number, members)
        if anchor in producers or producers & behind:
            behind.add(number)
    return behind


def _before(graph: Graph, members: frozenset[int], anchor: int) -> set[int]:
    """The members that the anchor depends on."""
    before: set[int] = set()
    stack = [anchor]
    while stack:
        new = graph.producers(stack.pop(), members) - before
        before |= new
        stack.extend(new)
    return before


def _count(shape: tuple[int, ...] | None) -> int | None:
    return None if shape is None else math.prod(shape)


# The candidates that give every output of a model at the least sum of their costs.
#
# Dynamic programming over the operators from the last to the first. A state is the set of
# operators whose results are still to be computed, with the least cost of what is chosen behind
# them. Its last operator becomes the root of one of its candidates, whose inputs take its place
# in the set:
#
#     cost(S - {r} + inputs(c))  <-  cost(S) + latency(c)      r = max(S), c a candidate of root r
#
# Roots come behind all that they read, so no choice has a cycle, whatever the groups. Where
# layers meet in few values the states are few. More than `MAX_STATES` of one last operator are
# cut to those with the least cost so far and estimate of what is left; the choice is the
# cheapest as long as there are fewer.

#: States of one last operator that are looked at.
MAX_STATES = 128

#: The least cost of a state, and how it was reached: a candidate, and the state before.
_Reached: TypeAlias = "tuple[float, PossibleGroup | None, _Reached | None]"


def choose(
    graph: Graph,
    latency_us: Mapping[PossibleGroup, float],
    known: Sequence[Sequence[PossibleGroup]],
) -> list[PossibleGroup]:
    """The cheapest choice, in the order of the roots.

    Args:
        latency_us: the candidates with their costs.
        known: choices. The cheapest of them is the result if nothing is cheaper.
    """
    choices = [*known, _cheapest(graph, latency_us)]
    best = min(choices, key=lambda each: sum(map(latency_us.__getitem__, each)))
    return sorted(best, key=lambda each: each.root)


def _cheapest(graph: Graph, latency_us: Mapping[PossibleGroup, float]) -> list[PossibleGroup]:
    of_root = _undominated(latency_us)
    left_us = _estimates(graph, of_root)
    states: defaultdict[int, dict[int, _Reached]] = defaultdict(dict)
    first = _mask(graph.outputs)
    states[first.bit_length() - 1][first] = (0.0, None, None)
    for root in range(len(graph.operators) - 1, -1, -1):
        for mask, reached in _best(states.pop(root, {}), left_us):
            rest = mask ^ (1 << root)
            for cost_us, inputs, each in of_root.get(root, ()):
                after = rest | inputs
                bucket = states[after.bit_length() - 1]
                total_us = reached[0] + cost_us
                if after not in bucket or total_us < bucket[after][0]:
                    bucket[after] = (total_us, each, reached)
    return _path(states[-1][0])


def _best(states: Mapping[int, _Reached], left_us: Sequence[float]) -> list[tuple[int, _Reached]]:
    """The states to look at: all, or those that promise the least cost."""
    if len(states) <= MAX_STATES:
        return list(states.items())

    def promise(item: tuple[int, _Reached]) -> float:
        mask, reached = item
        return reached[0] + sum(left_us[n] for n in _numbers(mask))

    return sorted(states.items(), key=promise)[:MAX_STATES]


def _estimates(
    graph: Graph, of_root: Mapping[int, Sequence[tuple[float, int, PossibleGroup]]]
) -> list[float]:
    """What each operator's result costs, with its share of what it is computed from."""
    estimates: list[float] = []
    for number in range(len(graph.operators)):
        totals = [
            cost_us + sum(estimates[v] / max(1, len(graph.readers[v])) for v in _numbers(inputs))
            for cost_us, inputs, _ in of_root.get(number, ())
        ]
        estimates.append(min(totals, default=math.inf))
    return estimates


def _undominated(
    latency_us: Mapping[PossibleGroup, float],
) -> dict[int, list[tuple[float, int, PossibleGroup]]]:
    """Of each root the cost, inputs and candidate of those that no other one beats."""
    best: dict[tuple[int, int], tuple[float, int, PossibleGroup]] = {}
    for each, cost_us in latency_us.items():
        inputs = _mask(each.inputs)
        key = each.root, inputs
        if key not in best or cost_us < best[key][0]:
            best[key] = (cost_us, inputs, each)
    of_root = defaultdict(list)
    for (root, _), entry in best.items():
        of_root[root].append(entry)
    return of_root


def _mask(values: frozenset[int]) -> int:
    return sum(1 << value for value in values if value >= 0)


def _numbers(mask: int) -> list[int]:
    numbers = []
    while mask:
        number = mask.bit_length() - 1
        numbers.append(number)
        mask ^= 1 << number
    return numbers


def _path(reached: _Reached | None) -> list[PossibleGroup]:
    path = []
    while reached is not None:
        _, each, reached = reached
        if each is not None:
            path.append(each)
    return path
