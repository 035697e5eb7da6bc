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

from felix.target import Hardware


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
class PossibleGroup:
    """Operators that may become one program.

    Attributes:
        root: the value that it gives, that of the last member.
        members: the operators.
        inputs: values that it reads.
    """

    root: int
    members: frozenset[int]
    inputs: frozenset[int]


def candidate(graph: Graph, members: Collection[int]) -> PossibleGroup:
    """The candidate of some operators, the last of which gives its result."""
    return PossibleGroup(graph.value(max(members)), frozenset(members), graph.inputs(members))


# What a candidate takes: the speed of light, and what its program falls short of it.
#
# Speed of light: each kernel's launch, and the longer of moving every input and result once
# through memory and of the float operations at the peak rate.
#
#     latency_us = launch_us * kernels + max(bytes / bandwidth, flops / peak)
#
# It is projected to the part of the machine that the program can keep busy. Rows are reduced by
# one core each, so fewer rows than cores leave bandwidth unused. Kernels are those of the
# program's best schedule where that is known; values between them go through memory. A measured
# latency, where records have one, takes the place of all this.

#: Launch of a kernel in a CUDA graph; the call of a program on a CPU, with its threads woken.
GPU_LAUNCH_US, CPU_LAUNCH_US = 1.5, 2.0
#: Operations of 16 bits on tensor cores for one of float32 elsewhere: of the A10G four, of the
#: A100 and the H100 sixteen. Programs of float32 have no templates, whatever their group.
TENSOR_CORE_RATE = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Of one candidate.

    Attributes:
        launch_us: of its kernels.
        memory_us, compute_us: what moving bytes and computing would take alone.
    """

    launch_us: float
    memory_us: float
    compute_us: float

    @property
    def latency_us(self) -> float:
        """Both together."""
        return self.launch_us + max(self.memory_us, self.compute_us)


@dataclasses.dataclass(frozen=True, slots=True)
class Schedules:
    """The schedules of a candidate's program.

    Attributes:
        n_kernels: of the schedule with the fewest; None if it has no schedule.
        has_template: whether kernels for tensor cores are generated for it.
    """

    n_kernels: int | None
    has_template: bool = True


def projected(
    graph: Graph, candidate: PossibleGroup, machine: Hardware, schedules: Schedules | None = None
) -> Cost:
    """The projection of a candidate, with what is known of its program."""
    if all(graph.operators[number].role is Role.VIEW for number in candidate.members):
        return Cost(0.0, 0.0, 0.0)
    n_kernels = 1 if schedules is None or schedules.n_kernels is None else schedules.n_kernels
    busy = _busy(graph, candidate, machine)
    n_bytes = moved_bytes(graph, candidate) + _between_kernels(graph, candidate, n_kernels)
    flops = sum(graph.operators[number].flops for number in candidate.members)
    cost = Cost(
        launch_us=n_kernels * (GPU_LAUNCH_US if machine.is_gpu else CPU_LAUNCH_US),
        memory_us=n_bytes / (machine.dram_bandwidth_gbs * busy) / 1e3,
        compute_us=flops / (machine.peak_fp32_gflops * busy) / 1e3,
    )
    if schedules is None or schedules.has_template:
        rate = TENSOR_CORE_RATE if machine.is_gpu else 1.0
        cost = dataclasses.replace(cost, compute_us=cost.compute_us / rate)
    return cost


def moved_bytes(graph: Graph, candidate: PossibleGroup) -> int:
    """Bytes of every input that is read, and of the result."""
    most: dict[int, int] = {}
    for number in candidate.members:
        for read in graph.operators[number].reads:
            if read.value in candidate.inputs:
                most[read.value] = max(most.get(read.value, 0), read.n_bytes)
    return sum(most.values()) + graph.operators[candidate.root].result_bytes


def _between_kernels(graph: Graph, candidate: PossibleGroup, n_kernels: int) -> int:
    """Bytes of values that one kernel of a program writes and the next one reads: one of rows."""
    is_rows = any(graph.operators[n].role is Role.ROWS for n in candidate.members)
    largest = max(graph.operators[n].result_bytes for n in candidate.members)
    return (n_kernels - 1) * largest if is_rows else 0


def _busy(graph: Graph, candidate: PossibleGroup, machine: Hardware) -> float:
    """The part of a machine's cores that a program keeps busy."""
    rows = [graph.operators[number].n_rows for number in candidate.members]
    n_rows = max(rows, default=0)
    return min(1.0, n_rows / machine.cores) if n_rows else 1.0
