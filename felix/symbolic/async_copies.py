"""Vectors of copies to shared memory for which TVM's rules are not enough.

TVM makes one instruction of a vector that a software-pipelined loop copies to shared memory. It
takes the elements for neighbours at an aligned address without a look at either
(InjectPTXAsyncCopy). A vector that leaves its row then copies other elements, or stops the kernel;
so such decisions are not legal. Elsewhere TVM gathers such a vector, element by element, but its
CUDA has no vectors of the 8 or 16 indices that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sympy

from felix.symbolic import ir, kernels, regions, scalar
from felix.symbolic.ir import Block, Loop, Scalar

#: What one `cp.async` copies, beside single elements.
_VECTOR_BYTES = (4, 8, 16)
#: Lanes of vectors that are never gathered.
_WHOLE_LANES = (8, 16)


def violations(loops: Sequence[Loop], block: Block, lanes: Scalar) -> Iterator[Scalar]:
    """Conditions, 0 where the vectors of a fetch may be copied.

    Args:
        loops: around the block; the innermost is the fused loop of the fetch, before it is split.
        lanes: of a vector.
    """
    value = block.store.value
    access = value.access
    if access is None:
        return
    element_bytes = access.buffer.dtype_bytes
    if any(kernels.STAGES in loop.annotations for loop in loops):
        lengths = [size // element_bytes for size in _VECTOR_BYTES if size > element_bytes]
    else:
        longest = _VECTOR_BYTES[-1] // element_bytes
        lengths = [lanes for lanes in _WHOLE_LANES if lanes <= longest]
        if not lengths:
            return
    is_vector: Scalar = 0
    for length in lengths:
        is_vector = scalar.either(is_vector, scalar.equal(lanes, length))
    for step, is_taken in dict.fromkeys(_steps(access, block, loops[-1])):
        if isinstance(step, int) and step % lengths[-1] == 0:
            continue
        misses = scalar.negated(scalar.equal(scalar.floor_mod(step, lanes), 0))
        yield scalar.both(scalar.both(is_vector, is_taken), misses)


def _steps(access: ir.Access, block: Block, fetch: Loop) -> Iterator[tuple[Scalar, Scalar]]:
    """(elements, condition) that a vector has to divide where the condition holds.

    They are the elements of a run of neighbours, and the steps of its address.
    """
    run: Scalar = 1
    is_whole: Scalar = 1
    stride: Scalar = 1
    for index, size in zip(reversed(access.indices), reversed(access.buffer.shape), strict=True):
        affine = regions.index_affine(index, block)
        terms = {} if affine is None else affine.terms
        inside = [component for component in terms if component in fetch.components]
        extent = ir.product(component.extent for component in inside)
        run = scalar.select(is_whole, run * extent, run)
        is_whole = scalar.both(is_whole, scalar.equal(extent, size))
        yield _multiple(1 if affine is None else affine.constant, stride), 1
        for component, factor in terms.items():
            if component not in inside:
                moves = scalar.negated(scalar.equal(component.extent, 1))
                yield _multiple(factor, stride), moves
        stride = stride * size
    yield run, 1


def _multiple(factor: Scalar, stride: Scalar) -> Scalar:
    """`factor * stride`; its whole-number part alone where that decides it."""
    product = factor * stride
    if isinstance(product, int):
        return product
    whole = int(sympy.sympify(product).as_coeff_Mul()[0])
    return whole if whole % max(_VECTOR_BYTES) == 0 else product
