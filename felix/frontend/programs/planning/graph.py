"""The operators of a model as the planner sees them: what they read, and what they cost.

Values have numbers. Those of operators are the operators' places in the order of execution, so an
operator reads smaller numbers; inputs and parameters have negative ones.

A value may have several operators that compute it. The first is the model's; the others, its
*stand-ins*, come right behind it. What only stand-ins read is *extra*: the model does not have it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Collection, Mapping, Sequence


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
        is_narrow: whether all elements that it reads have 16 bits at most.
    """

    role: Role
    reads: tuple[Read, ...]
    shape: tuple[int, ...] | None
    result_bytes: int
    flops: int = 0
    n_rows: int = 0
    is_narrow: bool = False

    @property
    def is_cheap(self) -> bool:
        """Whether it costs little where it is computed again: it reads no more than it gives."""
        is_map = self.role in (Role.ELEMENTWISE, Role.CAST)
        return self.role in (Role.MOVE, Role.VIEW) or (is_map and len(self.reads) == 1)


@dataclasses.dataclass(frozen=True)
class Graph:
    """The operators of a model in the order of execution, and the numbers of its outputs.

    Attributes:
        stands_for: of each stand-in the value that it computes.
        extra: values that the model does not have.
    """

    operators: tuple[Operator, ...]
    outputs: frozenset[int]
    stands_for: Mapping[int, int] = dataclasses.field(default_factory=dict)
    extra: frozenset[int] = frozenset()

    def is_own(self, number: int) -> bool:
        """Whether the model has an operator."""
        return number not in self.stands_for and number not in self.extra

    def value(self, number: int) -> int:
        """What an operator computes."""
        return self.stands_for.get(number, number)

    @functools.cached_property
    def makers(self) -> Sequence[tuple[int, ...]]:
        """The operators that compute each value: the model's, then its stand-ins."""
        makers: list[tuple[int, ...]] = [(number,) for number in range(len(self.operators))]
        for number, value in self.stands_for.items():
            makers[value] += (number,)
        return makers

    @functools.cached_property
    def readers(self) -> Sequence[frozenset[int]]:
        """The operators that read each value: the model's, and of an extra value all."""
        readers: list[set[int]] = [set() for _ in self.operators]
        for number, operator in enumerate(self.operators):
            is_own = self.is_own(number)
            for read in operator.reads:
                if read.value >= 0 and (is_own or read.value in self.extra):
                    readers[read.value].add(number)
        return [frozenset(each) for each in readers]

    def inputs(self, members: Collection[int]) -> frozenset[int]:
        """Values that some operators read and do not compute themselves."""
        reads = {read.value for number in members for read in self.operators[number].reads}
        return frozenset(reads - {self.value(number) for number in members})

    def producers(self, number: int, members: Collection[int]) -> set[int]:
        """The members that compute what an operator reads."""
        reads = {read.value for read in self.operators[number].reads}
        return {other for other in members if self.value(other) in reads}


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Operators that may become one program.

    Attributes:
        root: the value that it gives, that of the last member.
        members: the operators.
        inputs: values that it reads.
    """

    root: int
    members: frozenset[int]
    inputs: frozenset[int]


def candidate(graph: Graph, members: Collection[int]) -> Candidate:
    """The candidate of some operators, the last of which gives its result."""
    return Candidate(graph.value(max(members)), frozenset(members), graph.inputs(members))
