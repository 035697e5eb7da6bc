"""Copies to shared memory for which TVM's rules are not enough.

TVM makes one instruction of a vector that a software-pipelined loop copies to shared memory. It
takes the elements for neighbours at an aligned address without a look at either
(InjectPTXAsyncCopy). A vector that leaves its row then copies other elements, or stops the kernel;
so such decisions are not legal. Elsewhere TVM gathers such a vector, element by element, but its
CUDA has no vectors of the 8 or 16 indices that takes.

Where one thread alone copies elements that lie side by side, TVM takes the loop for the work of a
DMA engine (LowerAsyncDMA), which its CUDA cannot write. Such decisions are not legal either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import sympy

from felix.symbolic import ir, kernels, regions, scalar
from felix.symbolic.ir import Block, Loop, Scalar

#: What one `cp.async` copies, beside single elements.
_VECTOR_BYTES = (4, 8, 16)
#: Lanes of vectors that are never gathered.
_WHOLE_LANES = (8, 16)


def violations(
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
