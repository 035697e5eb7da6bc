"""Copies by TMA in numpy, as the PTX ISA documents them: boxes, im2col walks, swizzles.

A copy gives [rows][elements] in the order in which it lies in shared memory before its swizzle;
`swizzled` says where the swizzle puts a byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.launch_plan import Im2col, TensorMap

Array = NDArray[Any]

#: Address bits that a swizzle of so many bytes changes.
_SWIZZLE_BITS = {128: 3, 64: 2, 32: 1, 0: 0}


def swizzled(address: int, swizzle_bytes: int) -> int:
    """Bits 4 and up are exchanged by those of the row of 128 bytes, as many as the swizzle has."""
    return address ^ ((address >> 7 & (1 << _SWIZZLE_BITS[swizzle_bytes]) - 1) << 4)


def box_copy(tensor_map: TensorMap, memory: Array, at: Sequence[int]) -> Array:
    """A box that begins at `at`, innermost coordinate first; 0 outside of the tensor."""
    rows = itertools.product(*(range(size) for size in reversed(tensor_map.box[1:])))
    return np.array(
        [
            _row(
                tensor_map,
                memory,
                (at[0], *(a + i for a, i in zip(at[1:], row[::-1], strict=True))),
            )
            for row in rows
        ]
    )


def im2col_copy(
    tensor_map: TensorMap, memory: Array, at: Sequence[int], offsets: Sequence[int]
) -> Array:
    """The pixels of a column from place `at` = (channel, spatial innermost first, image).

    The walk is over places within the bounding box; each is read moved by the offsets.
    """
    walk = tensor_map.im2col
    assert walk is not None
    channel, *place, image = at
    rows = []
    for _ in range(tensor_map.box[1]):
        moved = (p + offset for p, offset in zip(place, offsets, strict=True))
        rows.append(_row(tensor_map, memory, (channel, *moved, image)))
        image += _advance(place, tensor_map.extents[1:-1], walk)
    return np.array(rows)


def _advance(place: list[int], extents: Sequence[int], walk: Im2col) -> int:
    """Go to the next place of the bounding box; 1 if that is in the next image."""
    for i, extent in enumerate(extents):
        place[i] += walk.strides[i]
        if place[i] <= extent - 1 + walk.upper[i]:
            return 0
        place[i] = walk.lower[i]
    return 1


def _row(tensor_map: TensorMap, memory: Array, at: Sequence[int]) -> Array:
    """`box[0]` elements along the innermost dimension, from `at` on."""
    row = np.zeros(tensor_map.box[0], memory.dtype)
    if not all(0 <= a < e for a, e in zip(at[1:], tensor_map.extents[1:], strict=True)):
        return row
    strides = (stride // memory.itemsize for stride in tensor_map.strides_bytes)
    start = tensor_map.offset_bytes // memory.itemsize
    start += sum(a * s for a, s in zip(at[1:], strides, strict=True))
    count = min(tensor_map.box[0], tensor_map.extents[0] - at[0])
    if count > 0 and at[0] >= 0:
        row[:count] = memory[start + at[0] : start + at[0] + count]
    return row


def in_shared_memory(rows: Array, swizzle_bytes: int) -> Array:
    """The bytes of shared memory that a copy fills, from an address that suits its swizzle."""
    flat = np.ascontiguousarray(rows).view(np.uint8).ravel()
    result = np.zeros_like(flat)
    pieces = np.arange(0, flat.size, 16)
    for piece in pieces:
        target = swizzled(int(piece), swizzle_bytes)
        result[target : target + 16] = flat[piece : piece + 16]
    return result
