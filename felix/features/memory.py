"""Memory features of one buffer of a store: bytes, footprints, strides, reuse, traffic.

Notation (see `nest` for loops)
    F_l     footprint in bytes of all buffers of the store while the loops inside l run
    f_l     the same of one buffer, its rows rounded up to cache lines
    O_l     iterations of loop l and all loops outside of it
    C       capacity of a cache in bytes

Traffic into a cache: the outermost level whose footprint fits, F_l <= C, is loaded once per
iteration outside of it, so O_l f_l bytes move. Reads `features.nest`; feeds `features.build`.
"""

from __future__ import annotations

import dataclasses

from felix.features import nest, unique
from felix.symbolic import expr, ir, scalar, usage
from felix.symbolic.ir import Digit, Loop, Scalar

LANES = (1, 2, 4, 8, 16)
SECTOR_BYTES = 32
BANKS_BYTES = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What the formulas need of the hardware."""

    is_gpu: bool
    line_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """State of the nest with the loops inside `loop` running (and `loop` itself not)."""

    loop: Loop | None
    outside: Scalar
    #: iterations of the loops inside
    inside: Scalar
    #: of all buffers
    footprint_bytes: Scalar
    line_bytes: list[Scalar]
    allowed: Scalar


def levels(row: nest.Row, machine: Machine) -> list[Level]:
    """Levels from the innermost (nothing runs) outwards, ending where parallel tasks begin."""
    result = []
    extents: dict[Digit, Scalar] = {}
    buffers = row.accesses
    loops = list(row.loops)
    each = [[nest.hull(a, row.block, {}) for a in accesses] for _, accesses, _, _ in buffers]
    for depth in range(len(loops), -1, -1):
        loop = loops[depth - 1] if depth > 0 else None
        hulls = [nest.largest(own) for own in each]
        sizes = [
            ir.product(h) * buffer.dtype_bytes
            for (buffer, _, _, _), h in zip(buffers, hulls, strict=True)
        ]
        lines = [
            _line_bytes(h, buffer.dtype_bytes, machine.line_bytes)
            for (buffer, _, _, _), h in zip(buffers, hulls, strict=True)
        ]
        outside = ir.product(lp.extent for lp in loops[:depth])
        inner = loops[depth] if depth < len(loops) else None
        allowed: Scalar = 1
        if inner is not None:
            allowed = scalar.negated(nest.is_task(inner))
            if loop is not None:
                both = scalar.both(nest.is_vector(inner), nest.is_vector(loop))
                allowed = scalar.both(allowed, scalar.negated(both))
        inside = ir.product(lp.extent for lp in loops[depth:])
        total = sum(sizes[1:], start=sizes[0])
        outside, inside, total, allowed, *lines = map(
            expr.alias, (outside, inside, total, allowed, *lines)
        )
        result.append(Level(loop, outside, inside, total, lines, allowed))
        if loop is not None:
            extents = {**extents, **{d: d.extent for d in loop.digits}}
            each = [
                [
                    nest.hull(a, row.block, extents, (loop.digits, before))
                    for a, before in zip(accesses, own, strict=True)
                ]
                for (_, accesses, _, _), own in zip(buffers, each, strict=True)
            ]
    return result


def _line_bytes(hull: list[Scalar], element: int, line: int) -> Scalar:
    """Bytes of a box of elements whose rows start on cache lines."""
    run = hull[-1] * element if hull else element
    return ir.product(hull[:-1]) * scalar.ceil_div(run, line) * line


def traffic(stack: list[Level], slot: int, capacity: int) -> Scalar:
    """Bytes of buffer `slot` moved into a cache of `capacity` bytes over the launch."""
    result = stack[0].outside * stack[0].line_bytes[slot]
    for level in stack[1:]:
        fits = scalar.both(level.allowed, scalar.less_equal(level.footprint_bytes, capacity))
        result = scalar.select(fits, level.outside * level.line_bytes[slot], result)
    return result


def reuse(row: nest.Row, stack: list[Level], slot: int) -> tuple[Scalar, Scalar, Scalar]:
    """(extent, iterations, bytes) of the innermost loop that comes back to the same address."""
    _, accesses, _, _ = row.accesses[slot]
    found: tuple[Scalar, Scalar, Scalar] = (0, 0, 0)
    for level in reversed(stack[:-1]):
        loop = level.loop
        assert loop is not None
        same = _live(row, loop)
        for access in accesses:
            same = scalar.both(same, _invariant(access, row, loop))
        same = expr.alias(same)
        values = (loop.extent, level.inside, level.footprint_bytes)
        found = (
            scalar.select(same, values[0], found[0]),
            scalar.select(same, values[1], found[1]),
            scalar.select(same, values[2], found[2]),
        )
    return found


def _live(row: nest.Row, loop: Loop) -> Scalar:
    """Condition that the loop alone has a second iteration, and that it passes the guards."""
    more = scalar.negated(scalar.equal(loop.extent, 1))
    return scalar.both(more, nest.passes(row.block, loop, 1))


def _invariant(access: ir.Access, row: nest.Row, loop: Loop) -> Scalar:
    """Condition that running `loop` alone leaves every index of the access where it is."""
    extents = {d: d.extent for d in loop.digits}
    result: Scalar = 1
    still: list[Scalar] = [1] * len(access.indices)
    for width in nest.hull(access, row.block, extents, (loop.digits, still)):
        result = scalar.both(result, scalar.equal(width, 1))
    return result


def stride(row: nest.Row, access: ir.Access, shape: tuple[Scalar, ...]) -> Scalar:
    """Address step of the innermost loop with more than one iteration that passes the guards."""
    result: Scalar = 0
    for loop in row.loops:
        step = nest.offset(access, row.block, shape, loop, 1)
        result = scalar.select(_live(row, loop), step, result)
    return result


def vector_stride(row: nest.Row, access: ir.Access, shape: tuple[Scalar, ...]) -> Scalar:
    """Address step of the innermost loop if that is vectorized and not trivial.

    Loops that have one iteration for some decisions only do not make TVM vectorize around them.
    """
    loops = [lp for lp in row.loops if not scalar.is_static(lp.extent, 1)]
    if not loops:
        return 0
    loop = loops[-1]
    live = scalar.both(nest.is_vector(loop), scalar.negated(scalar.equal(loop.extent, 1)))
    if scalar.is_static(live, 0):
        return 0
    return scalar.select(live, nest.offset(access, row.block, shape, loop, 1), 0)


def warp(
    row: nest.Row, access: ir.Access, shape: tuple[Scalar, ...], element: int
) -> tuple[Scalar, Scalar]:
    """(32-byte sectors, bank-conflict ways) of one warp access.

    Built from the byte offsets of lanes 1, 2, 4, 8, 16: each offset of a sector or more doubles
    the sectors, each nonzero multiple of 128 bytes doubles the ways; lanes that a boundary guard
    excludes do neither. Exact for lanes whose address is a sum over the bits of the lane.
    """
    threads = [lp for lp in row.loops if lp.thread == "threadIdx.x"]
    sectors: Scalar = 1
    ways: Scalar = 1
    if not threads:
        return sectors, ways
    loop = threads[0]
    for lane in LANES:
        distance = nest.offset(access, row.block, shape, loop, lane) * element
        present = scalar.both(scalar.less(lane, loop.extent), nest.passes(row.block, loop, lane))
        far = scalar.both(present, scalar.less_equal(SECTOR_BYTES, distance))
        sectors = sectors * scalar.select(far, 2, 1)
        bank = scalar.equal(scalar.floor_mod(distance, BANKS_BYTES), 0)
        moved = scalar.both(present, scalar.less(0, distance))
        ways = ways * scalar.select(scalar.both(moved, bank), 2, 1)
    return sectors, ways


def task_bytes(row: nest.Row, slot: int) -> Scalar:
    """Footprint of one buffer in one parallel task (CPU) or thread block (GPU)."""
    buffer, accesses, _, _ = row.accesses[slot]
    extents: dict[Digit, Scalar] = {}
    for loop in row.loops:
        task = nest.is_task(loop)
        for digit in loop.digits:
            extents[digit] = scalar.select(task, 1, digit.extent)
    hulls = [nest.hull(access, row.block, extents) for access in accesses]
    return ir.product(nest.largest(hulls)) * buffer.dtype_bytes


def slot_values(
    row: nest.Row,
    slot: int,
    stack: list[Level],
    shapes: dict[str, tuple[Scalar, ...]],
    machine: Machine,
) -> list[Scalar]:
    """The features of one buffer slot, in the order of `spec`."""
    buffer, accesses, read, written = row.accesses[slot]
    shape = shapes[buffer.name]
    element = buffer.dtype_bytes
    scope = buffer.scope.split(".")[0]
    times, trips, distance = reuse(row, stack, slot)
    if machine.is_gpu:
        moved: list[Scalar] = [0, 0, 0]
        sectors, ways = warp(row, accesses[0], shape, element)
        sectors = sectors if scope == "global" else 0
        ways = ways if scope == "shared" else 0
    else:
        capacities = (machine.l1_bytes, machine.l2_bytes, machine.l3_bytes)
        moved = [traffic(stack, slot, c) for c in capacities]
        sectors, ways = 0, 0
    return [
        int(read),
        int(written),
        int(scope == "global"),
        int(scope == "shared"),
        row.trip * element,
        unique.elements(row, accesses) * element,
        task_bytes(row, slot),
        stride(row, accesses[0], shape),
        vector_stride(row, accesses[0], shape),
        times,
        trips,
        distance,
        *moved,
        sectors,
        ways,
    ]


def reduce_trips(row: nest.Row) -> tuple[Scalar, Scalar]:
    """(unbound, thread-bound) products of the loops that feed a reduction iterator."""
    unbound: Scalar = 1
    bound: Scalar = 1
    if row.is_init:
        return unbound, bound
    for loop in row.loops:
        feeding: Scalar = 0
        for it, binding in zip(row.block.iters, row.block.bindings, strict=True):
            if it.kind == "reduce":
                for digit in loop.digits:
                    feeding = scalar.either(feeding, usage.mentions(binding, digit))
        factor = scalar.select(feeding, loop.extent, 1)
        if loop.thread is None:
            unbound = unbound * factor
        else:
            bound = bound * factor
    return unbound, bound
