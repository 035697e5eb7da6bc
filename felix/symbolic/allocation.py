"""Where intermediate buffers live and how large they are once TVM has compacted them.

Rules of PlanAndUpdateBufferAllocationLocation (the lowest loop around all accesses, raised above
reduction loops, outside of any kernel for global buffers) and CompactBufferAllocation (the hull
of the accesses inside that loop; all threads of a block for shared memory).
"""

from __future__ import annotations

import dataclasses

from felix.symbolic import ir, regions, scalar, usage
from felix.symbolic.ir import Block, Buffer, Loop, Program, Scalar


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


def allocations(program: Program) -> list[Allocation]:
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


def _uses(program: Program, buffer: Buffer) -> list[_Use]:
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
    shape = tuple(
        _at_most(interval, extent) for interval, extent in zip(hull, buffer.shape, strict=True)
    )
    return Allocation(buffer, site, shape)


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
        for it, binding in zip(block.iters, block.bindings, strict=True):
            if it.kind == "reduce" and any(
                not scalar.is_static(usage.mentions(binding, comp), 0) for comp in loop.components
            ):
                return i
    return depth
