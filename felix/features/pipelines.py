"""Software pipelines: how deep the one around a store is, what the store copies asynchronously.

MetaSchedule annotates the loop over the tiles of a reduction with a stage for each statement in
it, and with the stages whose copies from global to shared memory are asynchronous. TVM makes them
`cp.async` where one instruction moves 4, 8 or 16 bytes that lie side by side; a copy that is 0
where it is out of bounds is written element by element. Where vector lanes wrap from one row to
the next, which only the first two of them do not tell, TVM copies synchronously.
"""

from __future__ import annotations

from collections.abc import Mapping

from felix.features import stores
from felix.symbolic import ir, kernels, scalar
from felix.symbolic.ir import Loop, Scalar

ASYNC_STAGES = "software_pipeline_async_stages"
#: What one cp.async moves.
INSTRUCTION_BYTES = (4, 8, 16)


def row_values(row: stores.Row, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
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
