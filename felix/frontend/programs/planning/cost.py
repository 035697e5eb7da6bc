"""What a candidate takes: the speed of light, and what its program falls short of it.

Speed of light: each kernel's launch, and the longer of moving every input and result once through
memory and of the float operations at the peak rate.

    latency_us = launch_us * kernels + max(bytes / bandwidth, flops / peak)

It is projected to the part of the machine that the program can keep busy. Rows are reduced
by one core each, so fewer rows than cores leave bandwidth unused. Kernels are those of the
program's best schedule where that is known; values between them go through memory. A measured
latency, where records have one, takes the place of all this.
"""

from __future__ import annotations

import dataclasses

from felix.frontend.programs.planning.graph import Candidate, Graph, Role
from felix.target import Hardware

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
class Judgement:
    """The schedules of a candidate's program.

    Attributes:
        n_kernels: of the schedule with the fewest; None if it has no schedule.
        has_template: whether kernels for tensor cores are generated for it.
    """

    n_kernels: int | None
    has_template: bool = True


def projected(
    graph: Graph, candidate: Candidate, machine: Hardware, judgement: Judgement | None = None
) -> Cost:
    """The projection of a candidate, with what is known of its program."""
    if _is_view(graph, candidate):
        return Cost(0.0, 0.0, 0.0)
    n_kernels = 1 if judgement is None or judgement.n_kernels is None else judgement.n_kernels
    busy = _busy(graph, candidate, machine)
    n_bytes = moved_bytes(graph, candidate) + _between_kernels(graph, candidate, n_kernels)
    flops = sum(graph.operators[number].flops for number in candidate.members)
    cost = Cost(
        launch_us=n_kernels * (GPU_LAUNCH_US if machine.is_gpu else CPU_LAUNCH_US),
        memory_us=n_bytes / (machine.dram_bandwidth_gbs * busy) / 1e3,
        compute_us=flops / (machine.peak_fp32_gflops * busy) / 1e3,
    )
    if judgement is None or judgement.has_template:
        cost = dataclasses.replace(cost, compute_us=cost.compute_us / _tensor_rate(machine))
    return cost


def moved_bytes(graph: Graph, candidate: Candidate) -> int:
    """Bytes of every input that is read, and of the result."""
    most: dict[int, int] = {}
    for number in candidate.members:
        for read in graph.operators[number].reads:
            if read.value in candidate.inputs:
                most[read.value] = max(most.get(read.value, 0), read.n_bytes)
    return sum(most.values()) + graph.operators[candidate.root].result_bytes


def _tensor_rate(machine: Hardware) -> float:
    return TENSOR_CORE_RATE if machine.is_gpu else 1.0


def _between_kernels(graph: Graph, candidate: Candidate, n_kernels: int) -> int:
    """Bytes of values that one kernel of a program writes and the next one reads: one of rows."""
    is_rows = any(graph.operators[n].role is Role.ROWS for n in candidate.members)
    largest = max(graph.operators[n].result_bytes for n in candidate.members)
    return (n_kernels - 1) * largest if is_rows else 0


def _busy(graph: Graph, candidate: Candidate, machine: Hardware) -> float:
    """The part of a machine's cores that a program keeps busy."""
    rows = [graph.operators[number].n_rows for number in candidate.members]
    n_rows = max(rows, default=0)
    return min(1.0, n_rows / machine.cores) if n_rows else 1.0


def _is_view(graph: Graph, candidate: Candidate) -> bool:
    return all(graph.operators[number].role is Role.VIEW for number in candidate.members)
