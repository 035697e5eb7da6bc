"""What a store becomes in machine code: copies by unrolling, SIMD width, independent updates; how
deep the software pipeline around it is, and what it copies asynchronously.

TVM unrolls a serial loop when the stores inside of it, all copies counted, stay within
`unroll_step` statements. Virtual threads are always written out, but for stores that do not
depend on them. A vectorized loop is one statement, which the compiler splits into vectors of the
machine's width.

MetaSchedule annotates the loop over the tiles of a reduction with a stage for each statement in
it, and with the stages whose copies from global to shared memory are asynchronous. TVM makes them
`cp.async` where one instruction moves 4, 8 or 16 bytes that lie side by side; a copy that is 0
where it is out of bounds is written element by element. Where vector lanes wrap from one row to
the next, which only the first two of them do not tell, TVM copies synchronously.

Notation
    e~_l    extent of loop l as code: 1 for task, thread and vectorized loops
    n_l     stores inside l with all loops inside l unrolled: sum over rows in l of the product of
            e~ inside l and of the virtual threads it uses
    W       lanes of a machine vector
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from felix.features import spec, stores
from felix.symbolic import expr, ir, kernels, parallelize, scalar, usage
from felix.symbolic.ir import Loop, Scalar


def copies(rows: Sequence[stores.Row]) -> list[Scalar]:
    """How often each row's store stands in the code: product of e~_l with e~_l n_l <= step."""
    inside: dict[int, Scalar] = {}
    for row in rows:
        statements = _virtual(row)
        for loop in reversed(row.loops):
            inside[id(loop)] = inside.get(id(loop), 0) + statements
            statements = expr.share(statements * _plain_extent(loop))
    inside = {key: expr.share(statements) for key, statements in inside.items()}
    return [_copies(row, inside) for row in rows]


def _copies(row: stores.Row, inside: Mapping[int, Scalar]) -> Scalar:
    copied = [_virtual(row)]
    step: Scalar = 0
    for loop in row.loops:
        step = loop.annotations.get(parallelize.PRAGMA_STEP, step)
        extent = _plain_extent(loop)
        if scalar.is_static(extent, 1):
            continue
        fits = scalar.less_equal(extent * inside[id(loop)], step)
        copied.append(scalar.select(fits, extent, 1))
    return ir.product(copied)


def _virtual(row: stores.Row) -> Scalar:
    """Virtual threads that the store depends on; TVM writes it once for the others."""
    bound = [lp for lp in row.loops if (lp.thread or "").startswith("vthread")]
    return ir.product(lp.extent for lp in bound if _uses(row.block, lp))


def _uses(block: ir.Block, loop: Loop) -> bool:
    return any(
        not scalar.is_static(usage.mentions(binding, component), 0)
        for binding in block.bindings
        for component in loop.components
    )


def _plain_extent(loop: Loop) -> Scalar:
    """e~ of the loop."""
    if loop.thread is not None:
        return 1
    special = scalar.either(stores.is_task(loop), stores.is_vector(loop))
    return scalar.select(special, 1, loop.extent)


def row_values(
    row: stores.Row, values: Mapping[str, Scalar], lanes: int, is_gpu: bool
) -> dict[str, Scalar]:
    """SIMD features of a row from its structure and slots.

    Args:
        values: features of the row so far, by name.
        lanes: W of the machine.
    """
    vector = values["vector_extent"]
    steps: Scalar = 1 if is_gpu else scalar.ceil_div(vector, lanes)
    updates: Scalar = 0
    if row.block.is_reduction and not row.is_init:
        updates = scalar.rational(values["buf0.reuse_trips"]) / vector * steps
    if is_gpu:
        return {"simd_lanes": 1, "independent_updates": updates}
    auto = scalar.select(
        _contiguous(row, values), scalar.minimum(values["innermost_extent"], lanes), 1
    )
    used = scalar.select(scalar.equal(vector, 1), auto, scalar.rational(vector) / steps)
    return {"simd_lanes": used, "independent_updates": updates}


def _contiguous(row: stores.Row, values: Mapping[str, Scalar]) -> Scalar:
    """Condition that a compiler can vectorize the innermost loop: it writes neighbours."""
    result = scalar.equal(values["buf0.stride"], 1)
    for slot in range(1, min(spec.SLOTS, len(row.accesses))):
        result = scalar.both(result, scalar.less_equal(values[f"buf{slot}.stride"], 1))
    return result


ASYNC_STAGES = "software_pipeline_async_stages"
#: What one cp.async moves.
INSTRUCTION_BYTES = (4, 8, 16)


def pipeline_values(row: stores.Row, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """`pipeline_stages` and `async_bytes` of a row, from its features so far by name."""
    for loop in row.loops:
        if loop.annotations.get(kernels.STAGES):
            stages = max(loop.annotations[kernels.STAGES]) + 1
            copied = _copied_bytes(row, values) if _is_async(row.block, loop) else 0
            return {"pipeline_stages": stages, "async_bytes": copied}
    return {"pipeline_stages": 0, "async_bytes": 0}


def _is_async(block: ir.Block, loop: Loop) -> bool:
    """Whether the block is in an asynchronous stage of a pipelined loop."""
    stages = loop.annotations[kernels.STAGES]
    asynchronous = loop.annotations.get(ASYNC_STAGES, ())
    return any(
        stages[place] in asynchronous
        for place, child in enumerate(loop.body)
        if place < len(stages) and any(each is block for each in ir.blocks_under(child))
    )


def _copied_bytes(row: stores.Row, values: Mapping[str, Scalar]) -> Scalar:
    """trip x element size if an instruction's share of the copy has a size that cp.async takes."""
    value, target = row.store.value, row.store.target.buffer
    guarded = value.op == "if"
    source = value.args[1] if guarded else value
    if source.op != "load" or source.access is None:
        return 0
    scopes = [buffer.scope.split(".")[0] for buffer in (source.access.buffer, target)]
    if scopes != ["global", "shared"]:
        return 0
    element = target.dtype_bytes
    copied = row.trip * element
    alone = copied if element in INSTRUCTION_BYTES else 0
    if guarded:
        return alone
    together: Scalar = 0
    for size in INSTRUCTION_BYTES:
        fits = scalar.equal(values["vector_extent"] * element, size)
        together = scalar.either(together, fits)
    neighbours = scalar.both(together, scalar.equal(values["buf1.vector_stride"], 1))
    is_scalar = scalar.equal(values["vector_extent"], 1)
    return scalar.select(is_scalar, alone, scalar.select(neighbours, copied, 0))
