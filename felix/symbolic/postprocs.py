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

from collections.abc import Iterable, Iterator, Sequence

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir, kernels, parallelize, regions, scalar, usage
from felix.symbolic.instructions import loop_transforms, reduction
from felix.symbolic.ir import Block, Loop, Scalar, SymbolicProgram

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
#: Most blocks of a grid that BindBlockThreadIdx makes.
_MAX_BLOCKS = 256


def apply(
    program: SymbolicProgram, is_gpu: bool, max_threads_per_block: int = 1024, rewrite: bool = True
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


def cooperative_fetch(program: SymbolicProgram) -> None:
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
        program.conditions += copy_violations(loops, block, threads, lanes)
        factors: list[Scalar | None] = [None, threads]
        if not scalar.is_static(lanes, 1):
            factors.append(lanes)
        parts = loop_transforms.split(program, fused, factors)
        parts[1].kind, parts[1].thread = "thread", "threadIdx.x"
        if len(parts) == 3:
            parts[2].kind = "vectorized"


def _thread_extent(program: SymbolicProgram, block: Block) -> Scalar:
    """Extent of the threadIdx.x loop around the block (all such loops of a kernel are equal)."""
    for loops in (program.loops_of(block), *(loops for loops, _ in program.walk())):
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


def bind_unbound(program: SymbolicProgram, max_threads: int) -> None:
    """Give every block outside of any kernel a grid and a block (BindBlockThreadIdx)."""
    for _, block in list(program.walk()):
        loops = program.loops_of(block)
        names = [lp.thread or "" for lp in loops]
        if any(n.startswith("blockIdx") for n in names) and any(
            n.startswith("threadIdx") for n in names
        ):
            continue
        if TILED not in block.annotations:
            _bind_block(program, block, loops, max_threads)


def _bind_block(
    program: SymbolicProgram, block: Block, loops: list[Loop], max_threads: int
) -> None:
    # a condition that is open counts as true, for it matters only where a loop is unit
    parallel = [not scalar.is_static(usage.is_data_parallel(loop), 0) for loop in loops]
    n_spatial = [*parallel, False].index(False)
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
    if extent <= _MAX_BLOCKS * max_threads:
        grid, thread = loop_transforms.split(program, fused, [None, min(extent, max_threads)])
    else:
        rest, grid, thread = loop_transforms.split(
            program, fused, [None, _MAX_BLOCKS, max_threads]
        )
        loop_transforms.reorder(program, [grid, thread, rest])
    grid.kind, grid.thread = "thread", "blockIdx.x"
    thread.kind, thread.thread = "thread", "threadIdx.x"


#: Statements of such a reduction beside its partial sums: their init, and the reduction itself.
_STATEMENTS = 2


def violations(program: SymbolicProgram) -> Iterator[Scalar]:
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


# Copies to shared memory for which TVM's rules are not enough.
#
# TVM makes one instruction of a vector that a software-pipelined loop copies to shared memory. It
# takes the elements for neighbours at an aligned address without a look at either
# (InjectPTXAsyncCopy). A vector that leaves its row then copies other elements, or stops the
# kernel; so such decisions are not legal. Elsewhere TVM gathers such a vector, element by element,
# but its CUDA has no vectors of the 8 or 16 indices that takes.
#
# Where one thread alone copies elements that lie side by side, TVM takes the loop for the work of
# a DMA engine (LowerAsyncDMA), which its CUDA cannot write. Such decisions are not legal either.

#: What one `cp.async` copies, beside single elements.
_VECTOR_BYTES = (4, 8, 16)
#: Lanes of vectors that are never gathered.
_WHOLE_LANES = (8, 16)


def copy_violations(
    loops: Sequence[Loop], block: Block, threads: Scalar, lanes: Scalar
) -> Iterator[Scalar]:
    """Conditions, 0 where a fetch may be copied.

    Args:
        loops: around the block; the innermost is the fused loop of the fetch, before it is split.
        threads: that share the fetch.
        lanes: of a vector.
    """
    access = block.store.value.access
    if access is None:
        return
    fetch = loops[-1]
    run = _run(access, block, fetch)
    steps = dict.fromkeys([*_steps(access, block, fetch), (run, 1)])
    is_pipelined = any(kernels.STAGES in loop.annotations for loop in loops)
    yield from _split_vectors(steps, access.buffer.dtype_bytes, lanes, is_pipelined)
    if is_pipelined and kernels.fewest_threads(loops[0]) == 1:
        yield _is_dma(run, fetch.extent, threads * lanes)


def _split_vectors(
    steps: Iterable[tuple[Scalar, Scalar]], element_bytes: int, lanes: Scalar, is_pipelined: bool
) -> Iterator[Scalar]:
    """Conditions, 0 where the vectors divide all steps, pairs of `_steps`, that are taken."""
    if is_pipelined:
        lengths = [size // element_bytes for size in _VECTOR_BYTES if size > element_bytes]
    else:
        longest = _VECTOR_BYTES[-1] // element_bytes
        lengths = [lanes for lanes in _WHOLE_LANES if lanes <= longest]
        if not lengths:
            return
    is_vector: Scalar = 0
    for length in lengths:
        is_vector = scalar.either(is_vector, scalar.equal(lanes, length))
    for step, is_taken in steps:
        if isinstance(step, int) and step % lengths[-1] == 0:
            continue
        misses = scalar.negated(scalar.equal(scalar.floor_mod(step, lanes), 0))
        yield scalar.both(scalar.both(is_vector, is_taken), misses)


def _is_dma(run: Scalar, extent: Scalar, at_once: Scalar) -> Scalar:
    """Whether a loop copies one run of neighbours, `at_once` = threads x lanes = 1 at a time."""
    is_loop = scalar.both(scalar.equal(at_once, 1), scalar.less(1, extent))
    return scalar.both(is_loop, scalar.equal(run, extent))


def _run(access: ir.Access, block: Block, fetch: Loop) -> Scalar:
    """Elements of a run of neighbours that a fetch reads."""
    run: Scalar = 1
    is_whole: Scalar = 1
    for index, size in zip(reversed(access.indices), reversed(access.buffer.shape), strict=True):
        affine = regions.index_affine(index, block)
        terms = {} if affine is None else affine.terms
        extent = ir.product(part.extent for part in terms if part in fetch.components)
        run = scalar.select(is_whole, run * extent, run)
        is_whole = scalar.both(is_whole, scalar.equal(extent, size))
    return run


def _steps(access: ir.Access, block: Block, fetch: Loop) -> Iterator[tuple[Scalar, Scalar]]:
    """(elements, condition) of the steps of a fetch's address, taken where the condition holds."""
    stride: Scalar = 1
    for index, size in zip(reversed(access.indices), reversed(access.buffer.shape), strict=True):
        affine = regions.index_affine(index, block)
        yield _multiple(1 if affine is None else affine.constant, stride), 1
        for component, factor in ({} if affine is None else affine.terms).items():
            if component not in fetch.components:
                moves = scalar.negated(scalar.equal(component.extent, 1))
                yield _multiple(factor, stride), moves
        stride = stride * size


def _multiple(factor: Scalar, stride: Scalar) -> Scalar:
    """`factor * stride`; its whole-number part alone where that decides it."""
    product = factor * stride
    if isinstance(product, int):
        return product
    whole = int(sympy.sympify(product).as_coeff_Mul()[0])
    return whole if whole % max(_VECTOR_BYTES) == 0 else product
