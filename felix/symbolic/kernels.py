"""Kernels of a program and what each launches: grid, threads, memory; and the limits on them.

A kernel is a tree of the root block: on a GPU one launch, on a CPU one parallel region or serial
nest. Legality mirrors VerifyGPUCode.

Where intermediate buffers live and how large they are once TVM has compacted them is by the rules
of PlanAndUpdateBufferAllocationLocation (the lowest loop around all accesses, raised above
reduction loops, outside of any kernel for global buffers) and CompactBufferAllocation (the hull
of the accesses inside that loop; all threads of a block for shared memory).
"""

from __future__ import annotations

import dataclasses

from felix.symbolic import ir, regions, scalar, usage
from felix.symbolic.ir import Block, Buffer, Loop, Scalar, SymbolicProgram

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


def kernels(program: SymbolicProgram) -> list[Kernel]:
    """All kernels, in program order."""
    buffers = allocations(program)
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


def most_shared_bytes(program: SymbolicProgram) -> int:
    """Shared memory of a block, of the kernel of a concrete program that uses most."""
    return max((int(kernel.shared_bytes) for kernel in kernels(program)), default=0)


def fewest_threads(top: Loop | ir.Block) -> int:
    """Threads that VerifyGPUCode wants a block of a kernel to have."""
    limits = [block.annotations.get(LOW, 1) for block in ir.blocks_under(top)]
    return max(limits, default=1)


def _axes(top: Loop | ir.Block) -> dict[str, Scalar]:
    """Extent of every thread axis bound in the tree, outermost binding first."""
    extents: dict[str, Scalar] = {}
    for loop in (loop for loops, _ in ir.walk([top]) for loop in loops):
        if loop.thread is not None:
            extents.setdefault(loop.thread, loop.extent)
    return extents


def _total(buffers: list[Allocation], scope: str) -> Scalar:
    total: Scalar = 0
    for buffer in buffers:
        if buffer.buffer.scope.split(".")[0] == scope:
            total = total + buffer.size_bytes * (versions(buffer) if scope == "shared" else 1)
    return total


def versions(buffer: Allocation) -> int:
    """Copies a software pipeline keeps of a buffer: one more than the stages it lives through."""
    if not buffer.loops:
        return 1
    loop = buffer.loops[-1]
    stages = loop.annotations.get(STAGES)
    if not stages:
        return 1
    live = []
    for stage, child in zip(stages, loop.body, strict=False):
        accesses = (a for b in ir.blocks_under(child) for a in [*b.reads, *b.writes])
        if any(access.buffer is buffer.buffer for access in accesses):
            live.append(stage)
    return max(live) - min(live) + 1 if live else 1


def constraints(
    program: SymbolicProgram, max_threads: int, max_shared_bytes: int
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


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """One intermediate buffer.

    Attributes:
        loops: enclosing loops of the allocation, outermost first; empty for the function body.
        shape: compacted extents.
    """

    buffer: Buffer
    loops: list[Loop]
    shape: tuple[Scalar, ...]

    @property
    def elements(self) -> Scalar:
        return ir.product(self.shape)

    @property
    def size_bytes(self) -> Scalar:
        return self.elements * self.buffer.dtype_bytes


def allocations(program: SymbolicProgram) -> list[Allocation]:
    """Every intermediate buffer that is accessed, in order of declaration."""
    result = []
    for buffer in program.buffers:
        if buffer.is_parameter:
            continue
        uses = _uses(program, buffer)
        if uses:
            result.append(_allocation(buffer, uses))
    return result


_Use = tuple[list[Loop], Block, list[ir.Access]]


def _uses(program: SymbolicProgram, buffer: Buffer) -> list[_Use]:
    uses = []
    for loops, block in program.walk():
        stores = [*block.stores, *block.inits]
        accesses = [a for s in stores for a in [s.target, *s.value.loads()] if a.buffer is buffer]
        if accesses:
            uses.append((loops, block, list(dict.fromkeys(accesses))))
    return uses


def _allocation(buffer: Buffer, uses: list[_Use]) -> Allocation:
    site = _site(buffer, uses)
    below = site[-1] if site else None
    hull: list[regions.Interval] | None = None
    for loops, block, accesses in uses:
        relaxed = regions.path_components(loops, below, buffer.scope)
        intervals = regions.required_intervals(buffer, block, accesses, relaxed)
        assert intervals is not None
        hull = intervals if hull is None else regions.unions(hull, intervals, buffer.shape)
    assert hull is not None
    pairs = zip(hull, buffer.shape, strict=True)
    return Allocation(buffer, site, tuple(_at_most(*pair) for pair in pairs))


def _at_most(interval: regions.Interval, extent: Scalar) -> Scalar:
    clipped = regions.clip(interval, extent).extent
    if regions.within(interval, extent):
        return clipped
    return scalar.minimum(clipped, extent)


def _site(buffer: Buffer, uses: list[_Use]) -> list[Loop]:
    """The loops around the allocation."""
    common = list(uses[0][0])
    for loops, _, _ in uses[1:]:
        depth = 0
        while depth < min(len(common), len(loops)) and common[depth] is loops[depth]:
            depth += 1
        common = common[:depth]
    for loops, block, _ in uses:
        if block.stores_to(buffer):
            common = common[: _above_reduction(loops, block, len(common))]
    if buffer.scope == "global":
        for i, loop in enumerate(common):
            if loop.thread is not None:
                return common[:i]
    return common


def _above_reduction(loops: list[Loop], block: Block, depth: int) -> int:
    """Depth of the outermost loop that feeds a reduction of the block, at most `depth`."""
    for i, loop in enumerate(loops[:depth]):
        if usage.may_feed(loop.components, block):
            return i
    return depth
