"""What MetaSchedule's postprocessors do to the symbolic program.

Rules of RewriteCooperativeFetch and RewriteUnboundBlock; RewriteParallelVectorizeUnroll is in
`felix.symbolic.parallelize`, RewriteReductionBlock in `felix.symbolic.instructions.reduction`,
VerifyGPUCode in `felix.symbolic.kernels`. The vector width of a fetch may be an expression.

Some reductions across threads TVM cannot lower, for it would write them out several times: it
unrolls loops (UnrollLoop) before it lowers reductions across threads (LowerThreadAllreduce),
which refuses several reductions into one buffer. A reduction that is computed at its consumer has
the elements that the consumer needs in serial loops, and those must not be unrolled.
"""

from __future__ import annotations

from collections.abc import Iterator

from felix.errors import UnsupportedSchedule
from felix.symbolic import async_copies, parallelize, scalar, usage
from felix.symbolic.instructions import loop_transforms, reduction
from felix.symbolic.ir import Block, Loop, Program, Scalar

FETCH = "meta_schedule.cooperative_fetch"
TILED = "meta_schedule.tiling_structure"
#: Longest vector that VerifyGPUCode lets a thread load.
MAX_VECTOR_BYTES = 16
#: Types for which MultiLevelTiling offers no lanes beyond that.
FETCHED_WHOLE = ("float32", "float16", "int8")
#: Types for which MultiLevelTiling offers three lanes, and TVM's CUDA writes no such vectors.
FETCHED_EVEN = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
#: Most lanes of an int8 or float8 constant, which padding is, that TVM's CUDA writes.
_BROADCAST_BYTES = 4


def apply(
    program: Program, is_gpu: bool, max_threads_per_block: int = 1024, rewrite: bool = True
) -> None:
    """Run the postprocessors of MetaSchedule's default CUDA or CPU space on `program`.

    Args:
        rewrite: fuse parallel and vectorized loops as TVM does; else only mark them.
        max_threads_per_block: the target's limit; it bounds the threads given to unbound blocks.
    """
    if is_gpu:
        cooperative_fetch(program)
        bind_unbound(program, max_threads_per_block)
    parallelize.parallel_vectorize_unroll(program, rewrite)
    if is_gpu:
        program.conditions += violations(program)
    reduction.decompose_reductions(program)


# ---------------------------------------------------------------- cooperative fetch


def cooperative_fetch(program: Program) -> None:
    """Split the fused fetch loop into (rest, threads, vector lanes)."""
    for loops, block in list(program.walk()):
        if FETCH not in block.annotations:
            continue
        lanes = block.annotations.pop(FETCH)
        threads = _thread_extent(program, block)
        fused = loops[-1]
        divides = scalar.equal(scalar.floor_mod(fused.extent, lanes), 0)
        if _max_bytes(block) > 4:
            lanes = 1
        lanes = scalar.select(divides, lanes, 1)
        if block.writes[0].buffer.dtype not in FETCHED_WHOLE:
            program.conditions.append(lanes * _max_bytes(block) - MAX_VECTOR_BYTES)
        if block.writes[0].buffer.dtype in FETCHED_EVEN:
            program.conditions.append(scalar.equal(lanes, 3))
        if _is_padded_byte(block):
            program.conditions.append(scalar.less(_BROADCAST_BYTES, lanes))
        program.conditions += async_copies.violations(loops, block, threads, lanes)
        factors: list[Scalar | None] = [None, threads]
        if not scalar.is_static(lanes, 1):
            factors.append(lanes)
        parts = loop_transforms.split(program, fused, factors)
        parts[1].kind, parts[1].thread = "thread", "threadIdx.x"
        if len(parts) == 3:
            parts[2].kind = "vectorized"


def _thread_extent(program: Program, block: Block) -> Scalar:
    """Extent of the threadIdx.x loop around the block (all such loops of a kernel are equal)."""
    for loop in program.loops_of(block):
        if loop.thread == "threadIdx.x":
            return loop.extent
    for loops, _ in program.walk():
        for loop in loops:
            if loop.thread == "threadIdx.x":
                return loop.extent
    raise UnsupportedSchedule("a cooperative fetch without a threadIdx.x loop")


def _is_padded_byte(block: Block) -> bool:
    is_byte = block.writes[0].buffer.dtype_bytes == 1
    return is_byte and any(value.op == "const" for value in block.store.value.walk())


def _max_bytes(block: Block) -> int:
    return max(a.buffer.dtype_bytes for a in [*block.reads, *block.writes])


# ---------------------------------------------------------------- unbound blocks


def bind_unbound(program: Program, max_threads: int, max_blocks: int = 256) -> None:
    """Give every block outside of any kernel a grid and a block (BindBlockThreadIdx)."""
    for _, block in list(program.walk()):
        loops = program.loops_of(block)
        names = [lp.thread or "" for lp in loops]
        if any(n.startswith("blockIdx") for n in names) and any(
            n.startswith("threadIdx") for n in names
        ):
            continue
        if TILED not in block.annotations:
            _bind_block(program, block, loops, max_threads, max_blocks)


def _bind_block(
    program: Program, block: Block, loops: list[Loop], max_threads: int, max_blocks: int
) -> None:
    n_spatial = 0
    while n_spatial < len(loops) and _static(usage.is_data_parallel(loops[n_spatial])):
        n_spatial += 1
    if n_spatial == 0:
        unit = loop_transforms.add_unit_loop(program, loops[0] if loops else block)
        loops = [unit, *loops]
        n_spatial = 1
    n_single = len(loops)
    for i, loop in enumerate(loops):
        if loop.kind != "serial":
            n_single = min(n_single, i)
        if len(loop.body) != 1:
            n_single = min(n_single, i + 1)
    threads = [i for i, lp in enumerate(loops) if (lp.thread or "").startswith("threadIdx")]
    if threads:
        fused = loop_transforms.fuse(loops[: min(n_single, threads[0], n_spatial)])
        fused.kind, fused.thread = "thread", "blockIdx.x"
        return
    fused = loop_transforms.fuse(loops[: min(n_single, n_spatial)])
    extent = fused.extent
    if not isinstance(extent, int):
        raise UnsupportedSchedule("an unbound block with tiled loops")
    if extent <= max_blocks * max_threads:
        grid, thread = loop_transforms.split(program, fused, [None, min(extent, max_threads)])
    else:
        rest, grid, thread = loop_transforms.split(program, fused, [None, max_blocks, max_threads])
        loop_transforms.reorder(program, [grid, thread, rest])
    grid.kind, grid.thread = "thread", "blockIdx.x"
    thread.kind, thread.thread = "thread", "threadIdx.x"


def _static(condition: Scalar) -> bool:
    """A condition the structure depends on; one that is open counts as true, for it matters only
    where a loop is unit."""
    return not scalar.is_static(condition, 0)


#: Statements of such a reduction beside its partial sums: their init, and the reduction itself.
_STATEMENTS = 2


def violations(program: Program) -> Iterator[Scalar]:
    """Conditions, 0 where no serial loop around a reduction across threads is unrolled.

    Decisions that TVM can lower by few statements may be refused too.
    """
    for loops, block in program.walk():
        if block.is_reduction and not block.is_init and any(map(_is_reduced_by_threads, loops)):
            yield from _unrolled(loops)


def _is_reduced_by_threads(loop: Loop) -> bool:
    is_threads = (loop.thread or "").startswith("threadIdx")
    return is_threads and not scalar.is_static(usage.is_data_parallel(loop), 1)


def _unrolled(loops: list[Loop]) -> Iterator[Scalar]:
    step: Scalar = 0
    for loop in loops:
        if loop.annotations.get(parallelize.PRAGMA_EXPLICIT):
            step = loop.annotations[parallelize.PRAGMA_STEP]
    serial = [(loop, usage.is_data_parallel(loop)) for loop in loops if loop.kind == "serial"]
    partial: Scalar = 1
    for loop, is_spatial in serial:
        partial = partial * scalar.select(is_spatial, 1, loop.extent)
    statements = partial + _STATEMENTS
    for loop, is_spatial in reversed(serial):
        extent = scalar.select(is_spatial, loop.extent, 1)
        statements = statements * extent
        yield scalar.both(scalar.less(1, extent), scalar.less_equal(statements, step))
