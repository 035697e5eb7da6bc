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
from collections.abc import Iterable, Sequence

from felix.frontend.programs.planning.graph import Candidate, Graph, Role, candidate

#: Operators of a group; a program of many more has no schedule within the limits of a kernel.
MAX_OPERATORS = 32
#: Candidates of one root; the smaller ones come first.
MAX_OF_ROOT = 64
#: What may be in front of a contraction.
_PROLOGUES = frozenset({Role.MOVE, Role.VIEW, Role.CAST})
_MOVES = frozenset({Role.MOVE, Role.VIEW})
_ANCHORS = frozenset({Role.ROWS, Role.CONTRACTION})


def enumerate_all(graph: Graph, known: Iterable[Sequence[int]] = ()) -> list[Candidate]:
    """The candidates of a graph, by root; every operator alone is one.

    Args:
        known: groups that are candidates whatever they are: other ways' say. The last
            operator of each gives the result.
    """
    every: dict[Candidate, None] = {}
    for root in range(len(graph.operators)):
        every.update(dict.fromkeys(_of_root(graph, root)))
    every.update(dict.fromkeys(candidate(graph, members) for members in known))
    return sorted(every, key=lambda each: (each.root, len(each.members), sorted(each.members)))


def _of_root(graph: Graph, root: int) -> list[Candidate]:
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
    for number in _behind(graph, members, min(anchors)):
        operator = graph.operators[number]
        if operator.role is Role.VIEW or operator.shape is None:
            return False
        anchor = graph.operators[min(anchors)]
        if operator.role is not Role.ROWS and operator.shape != anchor.shape:
            return False
    return True


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
