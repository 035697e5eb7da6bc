"""The operators of a model as the planner sees them: what they read, and what they cost.

Values have numbers. Those of operators are the operators' places in the order of execution, so an
operator reads smaller numbers; inputs and parameters have negative ones.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Collection, Sequence


class Role(enum.Enum):
    """What an operator does to elements."""

    #: Each element of the result from elements at the same place, or broadcast ones.
    ELEMENTWISE = enum.auto()
    #: Elements of one type become elements of another.
    CAST = enum.auto()
    #: Elements of one tensor at other places: transposition, slice.
    MOVE = enum.auto()
    #: Elements of several tensors, or of computed places: concatenation.
    GATHER = enum.auto()
    #: The same elements in the same order with another shape.
    VIEW = enum.auto()
    #: Rows that are reduced, and what follows of each row: sum, softmax, norm.
    ROWS = enum.auto()
    #: A sum of products of two tensors.
    CONTRACTION = enum.auto()
    #: Nothing is known of it.
    OPAQUE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """An operand: the value, and the bytes that the operator reads of it."""

    value: int
    n_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    Attributes:
        role: what it does.
        reads: its operands.
        shape: of its result; None of several results.
        result_bytes: size of its results.
        flops: float operations.
        n_rows: of `Role.ROWS` the rows that are reduced, else 0.
    """

    role: Role
    reads: tuple[Read, ...]
    shape: tuple[int, ...] | None
    result_bytes: int
    flops: int = 0
    n_rows: int = 0

    @property
    def is_cheap(self) -> bool:
        """Whether it costs little where it is computed again: it reads no more than it gives."""
        is_map = self.role in (Role.ELEMENTWISE, Role.CAST)
        return self.role in (Role.MOVE, Role.VIEW) or (is_map and len(self.reads) == 1)


@dataclasses.dataclass(frozen=True)
class Graph:
    """The operators of a model in the order of execution, and the numbers of its outputs."""

    operators: tuple[Operator, ...]
    outputs: frozenset[int]

    @functools.cached_property
    def readers(self) -> Sequence[frozenset[int]]:
        """The operators that read each operator's result."""
        readers: list[set[int]] = [set() for _ in self.operators]
        for number, operator in enumerate(self.operators):
            for read in operator.reads:
                if read.value >= 0:
                    readers[read.value].add(number)
        return [frozenset(each) for each in readers]

    def inputs(self, members: Collection[int]) -> frozenset[int]:
        """Values that some operators read and do not compute themselves."""
        reads = {read.value for number in members for read in self.operators[number].reads}
        return frozenset(reads - set(members))


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Operators that may become one program.

    Attributes:
        root: whose result it gives; the last of the members.
        members: the operators, the root among them.
        inputs: values that it reads.
    """

    root: int
    members: frozenset[int]
    inputs: frozenset[int]


def candidate(graph: Graph, members: Collection[int]) -> Candidate:
    """The candidate of some operators, the last of which is its root."""
    return Candidate(max(members), frozenset(members), graph.inputs(members))
