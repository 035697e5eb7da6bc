"""Kernels of a program and what each launches: grid, threads, memory; and the limits on them.

A kernel is a tree of the root block: on a GPU one launch, on a CPU one parallel region or serial
nest. Legality mirrors VerifyGPUCode.
"""

from __future__ import annotations

import dataclasses

from felix.symbolic import allocation, ir
from felix.symbolic.ir import Loop, Program, Scalar

LOW, HIGH = (
    "meta_schedule.thread_extent_low_inclusive",
    "meta_schedule.thread_extent_high_inclusive",
)
STAGES = "software_pipeline_stage"


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """Launch dimensions and memory of one kernel.

    Attributes:
        index: position among the program's trees.
        threads: axis name -> extent ("threadIdx.x", ...).
        shared_bytes: per block, all pipeline stages of a buffer counted.
        local_bytes: per thread, all virtual threads counted.
    """

    index: int
    grid_blocks: Scalar
    threads: dict[str, Scalar]
    vthreads: Scalar
    shared_bytes: Scalar
    local_bytes: Scalar

    @property
    def block_threads(self) -> Scalar:
        return ir.product(self.threads.values())


def kernels(program: Program) -> list[Kernel]:
    """All kernels, in program order."""
    buffers = allocation.allocations(program)
    result = []
    for index, top in enumerate(program.body):
        axes = _axes(top)
        grid = ir.product(e for a, e in axes.items() if a.startswith("blockIdx"))
        threads = {a: e for a, e in axes.items() if a.startswith("threadIdx")}
        vthreads = ir.product(e for a, e in axes.items() if a.startswith("vthread"))
        allocated = [b for b in buffers if b.loops and b.loops[0] is top]
        shared = _total(allocated, "shared")
        local = _total(allocated, "local") * vthreads
        result.append(Kernel(index, grid, threads, vthreads, shared, local))
    return result


def most_shared_bytes(program: Program) -> int:
    """Shared memory of a block, of the kernel of a concrete program that uses most."""
    return max((int(kernel.shared_bytes) for kernel in kernels(program)), default=0)


def fewest_threads(top: Loop | ir.Block) -> int:
    """Threads that VerifyGPUCode wants a block of a kernel to have."""
    limits = [block.annotations.get(LOW, 1) for block in ir.blocks_under(top)]
    return max(limits, default=1)


def _axes(top: Loop | ir.Block) -> dict[str, Scalar]:
    """Extent of every thread axis bound in the tree, outermost binding first."""
    extents: dict[str, Scalar] = {}

    def visit(node: Loop | ir.Block) -> None:
        if isinstance(node, Loop):
            if node.thread is not None:
                extents.setdefault(node.thread, node.extent)
            for child in node.body:
                visit(child)

    visit(top)
    return extents


def _total(buffers: list[allocation.Allocation], scope: str) -> Scalar:
    total: Scalar = 0
    for buffer in buffers:
        if buffer.buffer.scope.split(".")[0] == scope:
            total = total + buffer.size_bytes * (versions(buffer) if scope == "shared" else 1)
    return total


def versions(buffer: allocation.Allocation) -> int:
    """Copies a software pipeline keeps of a buffer: one more than the stages it lives through."""
    if not buffer.loops:
        return 1
    loop = buffer.loops[-1]
    stages = loop.annotations.get(STAGES)
    if not stages:
        return 1
    uses = [
        i
        for i, child in enumerate(loop.body)
        if any(
            a.buffer is buffer.buffer
            for b in ir.blocks_under(child)
            for a in [*b.reads, *b.writes]
        )
    ]
    live = [stages[i] for i in uses if i < len(stages)]
    return max(live) - min(live) + 1 if live else 1


def constraints(
    program: Program, max_threads: int, max_shared_bytes: int
) -> list[tuple[str, Scalar]]:
    """(name, g) with g <= 0 where VerifyGPUCode and the instructions accept the decisions.

    Sizes are left as `value - limit`; `felix.autodiff.program.relative_constraint` makes them
    comparable.
    """
    result = [(f"structure{i}", c) for i, c in enumerate(program.conditions)]
    pipelined = {
        id(lp): lp for lps, _ in program.walk() for lp in lps if lp.annotations.get(STAGES)
    }
    # A unit pipeline loop drops out of the reduction, whose init then ends up inside the pipeline.
    result += [(f"pipeline{i}", 2 - lp.extent) for i, lp in enumerate(pipelined.values())]
    for kernel in kernels(program):
        if not kernel.threads:
            continue
        tag = f"kernel{kernel.index}"
        result.append((f"{tag}.max_threads", kernel.block_threads - max_threads))
        result.append((f"{tag}.shared_bytes", kernel.shared_bytes - max_shared_bytes))
        for block in ir.blocks_under(program.body[kernel.index]):
            low, high = block.annotations.get(LOW), block.annotations.get(HIGH)
            if low is not None and high is not None and not block.is_init:
                result.append((f"{tag}.low_threads", low - kernel.block_threads))
                result.append((f"{tag}.high_threads", kernel.block_threads - high))
    return [(name, g) for name, g in dict(result).items() if not _satisfied(g)]


def _satisfied(g: Scalar) -> bool:
    return bool(getattr(g, "is_number", isinstance(g, int)) and g <= 0)
