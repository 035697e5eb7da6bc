"""Memory features of one buffer of a store: bytes, footprints, strides, reuse, traffic.

Notation (see `felix.features.stores` for loops)
    F_l     footprint in bytes of all buffers of the store while the loops inside l run
    f_l     the same of one buffer, its rows rounded up to cache lines
    O_l     iterations of loop l and all loops outside of it
    C       capacity of a cache in bytes

Traffic into a cache: the outermost level whose footprint fits, F_l <= C, is loaded once per
iteration outside of it, so O_l f_l bytes move.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from felix.features import addresses, distinct, stores
from felix.symbolic import expr, ir, scalar, usage
from felix.symbolic.ir import IterComponent, Loop, Scalar
from felix.target import Hardware

LANES = (1, 2, 4, 8, 16)
SECTOR_BYTES = 32
BANKS_BYTES = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """State of the nest with the innermost loops running, down from some depth."""

    #: iterations of the loops inside
    inside: Scalar
    #: of all buffers
    footprint_bytes: Scalar
    #: O_l f_l of each buffer, and whether that may count as traffic: of CPUs alone
    moved_bytes: list[Scalar]
    allowed: Scalar


def levels(row: stores.Row, hardware: Hardware) -> list[Level]:
    """Levels from the innermost (nothing runs) outwards, ending where parallel tasks begin."""
    result = []
    extents: dict[IterComponent, Scalar] = {}
    buffers = row.accesses
    loops = list(row.loops)
    trips = [lp.extent for lp in loops]
    inside = [expr.share(ir.product(trips[depth:])) for depth in range(len(loops) + 1)]
    each = [[stores.hull(a, row.block, {}) for a in accesses] for _, accesses, _, _ in buffers]
    for depth in range(len(loops), -1, -1):
        loop = loops[depth - 1] if depth > 0 else None
        hulls = [stores.largest(buffer_hulls) for buffer_hulls in each]
        elements = [buffer.dtype_bytes for buffer, _, _, _ in buffers]
        sizes = [ir.product([*hull, size]) for hull, size in zip(hulls, elements, strict=True)]
        total = expr.share(sum(sizes[1:], start=sizes[0]))
        moved: list[Scalar] = []
        allowed: Scalar = 0
        if not hardware.is_gpu:
            outside = expr.share(ir.product(trips[:depth]))
            for hull, size in zip(hulls, elements, strict=True):
                lines = _line_bytes(hull, size, hardware.cache_line_bytes)
                moved.append(expr.share(ir.product([outside, *lines])))
            allowed = _allowed(loop, loops[depth] if depth < len(loops) else None)
        result.append(Level(inside[depth], total, moved, expr.share(allowed)))
        if loop is not None:
            extents = {**extents, **{comp: comp.extent for comp in loop.components}}
            each = [
                [
                    stores.hull(a, row.block, extents, (loop.components, before))
                    for a, before in zip(accesses, inner_hulls, strict=True)
                ]
                for (_, accesses, _, _), inner_hulls in zip(buffers, each, strict=True)
            ]
    return result


def _allowed(loop: Loop | None, inner: Loop | None) -> Scalar:
    """Condition that data may be loaded between two loops: within one task, not amid a vector."""
    if inner is None:
        return 1
    result = scalar.negated(stores.is_task(inner))
    if loop is not None:
        both = scalar.both(stores.is_vector(inner), stores.is_vector(loop))
        result = scalar.both(result, scalar.negated(both))
    return result


def _line_bytes(hull: list[Scalar], element: int, line: int) -> list[Scalar]:
    """Bytes of a box of elements whose rows start on cache lines, as factors."""
    run = hull[-1] * element if hull else element
    return [*hull[:-1], scalar.ceil_div(run, line), line]


def traffic(stack: list[Level], slot: int, capacities: Sequence[int]) -> list[Scalar]:
    """Bytes of buffer `slot` moved into caches of these capacities in bytes over the launch."""
    result = [stack[0].moved_bytes[slot]] * len(capacities)
    for level in stack[1:]:
        for i, capacity in enumerate(capacities):
            fits = scalar.both(level.allowed, scalar.less_equal(level.footprint_bytes, capacity))
            result[i] = scalar.select(fits, level.moved_bytes[slot], result[i])
    return result


def reuse(row: stores.Row, stack: list[Level], slot: int) -> tuple[Scalar, Scalar, Scalar]:
    """(extent, iterations, bytes) of the innermost loop that comes back to the same address."""
    _, accesses, _, _ = row.accesses[slot]
    innermost: tuple[Scalar, Scalar, Scalar] = (0, 0, 0)
    for loop, live, level in zip(row.loops, row.live, reversed(stack[:-1]), strict=True):
        same = live
        for access in accesses:
            same = scalar.both(same, _invariant(access, row, loop))
        same = expr.share(same)
        extent, inside, footprint = innermost
        innermost = (
            scalar.select(same, loop.extent, extent),
            scalar.select(same, level.inside, inside),
            scalar.select(same, level.footprint_bytes, footprint),
        )
    return innermost


def _invariant(access: ir.Access, row: stores.Row, loop: Loop) -> Scalar:
    """Condition that running `loop` alone leaves every index of the access where it is."""
    extents = {comp: comp.extent for comp in loop.components}
    result: Scalar = 1
    still: list[Scalar] = [1] * len(access.indices)
    for width in stores.hull(access, row.block, extents, (loop.components, still)):
        result = scalar.both(result, scalar.equal(width, 1))
    return result


def stride(row: stores.Row, address: addresses.Address) -> Scalar:
    """Address step of the innermost loop with more than one iteration that passes the guards."""
    result: Scalar = 0
    for loop, live in zip(row.loops, row.live, strict=True):
        result = scalar.select(live, address.offset(loop), result)
    return result


def vector_stride(row: stores.Row, address: addresses.Address) -> Scalar:
    """Address step of the innermost loop if that is vectorized and not trivial.

    Loops that have one iteration for some decisions only do not make TVM vectorize around them.
    """
    loops = [lp for lp in row.loops if not scalar.is_static(lp.extent, 1)]
    if not loops:
        return 0
    loop = loops[-1]
    live = scalar.both(stores.is_vector(loop), scalar.negated(scalar.equal(loop.extent, 1)))
    if scalar.is_static(live, 0):
        return 0
    return scalar.select(live, address.offset(loop), 0)


def warp(
    row: stores.Row, address: addresses.Address, element: int, scope: str
) -> tuple[Scalar, Scalar]:
    """(32-byte sectors, bank-conflict ways) of one warp access: of global, of shared memory.

    Built from the byte offsets of lanes 1, 2, 4, 8, 16: each offset of a sector or more doubles
    the sectors, each nonzero multiple of 128 bytes doubles the ways; lanes that a boundary guard
    excludes do neither. Exact for lanes whose address is a sum over the bits of the lane. Lanes
    beyond threadIdx.x are in the next threadIdx.y.
    """
    axes = {lp.thread: lp for lp in row.loops if lp.thread in ("threadIdx.x", "threadIdx.y")}
    sectors: Scalar = 1
    ways: Scalar = 1
    if scope not in ("global", "shared"):
        return 0, 0
    lanes: list[tuple[Loop, Scalar]] = []
    inner: Scalar = 1
    for axis in ("threadIdx.x", "threadIdx.y"):
        if axis in axes:
            lanes += [(axes[axis], scalar.floor_div(lane, inner)) for lane in LANES]
            inner = inner * axes[axis].extent
    for loop, lane in lanes:
        distance = address.offset(loop, lane) * element
        passes = addresses.passes(row.block, loop, lane)
        present = scalar.both(scalar.less(lane, loop.extent), passes)
        if scope == "global":
            far = scalar.both(present, scalar.less_equal(SECTOR_BYTES, distance))
            sectors = sectors * scalar.select(far, 2, 1)
        else:
            bank = scalar.equal(scalar.floor_mod(distance, BANKS_BYTES), 0)
            moved = scalar.both(present, scalar.less(0, distance))
            ways = ways * scalar.select(scalar.both(moved, bank), 2, 1)
    return (sectors, 0) if scope == "global" else (0, ways)


def task_bytes(row: stores.Row, slot: int) -> Scalar:
    """Footprint of one buffer in one parallel task (CPU) or thread block (GPU)."""
    buffer, accesses, _, _ = row.accesses[slot]
    extents: dict[IterComponent, Scalar] = {}
    for loop in row.loops:
        task = stores.is_task(loop)
        for component in loop.components:
            extents[component] = scalar.select(task, 1, component.extent)
    hulls = [stores.hull(access, row.block, extents) for access in accesses]
    return ir.product(stores.largest(hulls)) * buffer.dtype_bytes


def slot_values(
    row: stores.Row,
    slot: int,
    stack: list[Level],
    shapes: dict[ir.Buffer, tuple[Scalar, ...]],
    hardware: Hardware,
) -> list[Scalar]:
    """The features of one buffer slot, in the order of `spec`."""
    buffer, accesses, read, written = row.accesses[slot]
    address = addresses.Address(accesses[0], row.block, shapes[buffer])
    element = buffer.dtype_bytes
    scope = buffer.scope.split(".")[0]
    times, trips, distance = reuse(row, stack, slot)
    if hardware.is_gpu:
        moved: list[Scalar] = [0, 0, 0]
        sectors, ways = warp(row, address, element, scope)
    else:
        last = max(hardware.l3_bytes, hardware.l2_bytes)
        capacities = (hardware.l1_bytes, hardware.l2_bytes, last)
        moved = traffic(stack, slot, capacities)
        sectors, ways = 0, 0
    return [
        int(read),
        int(written),
        int(scope == "global"),
        int(scope == "shared"),
        row.trip * element,
        distinct.elements(row, accesses) * element,
        task_bytes(row, slot),
        stride(row, address),
        vector_stride(row, address),
        times,
        trips,
        distance,
        *moved,
        sectors,
        ways,
    ]


def reduce_trips(row: stores.Row) -> tuple[Scalar, Scalar]:
    """(unbound, thread-bound) products of the loops that feed a reduction iterator."""
    unbound: Scalar = 1
    bound: Scalar = 1
    if row.is_init:
        return unbound, bound
    for loop in row.loops:
        factor = scalar.select(usage.feeding(loop.components, row.block), loop.extent, 1)
        if loop.thread is None:
            unbound = unbound * factor
        else:
            bound = bound * factor
    return unbound, bound
