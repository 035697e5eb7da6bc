"""ONNX's AffineGrid: places in a tensor, between -1 and 1, after an affine map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend.onnx.node import Node, dtype_of
from felix.tir.rounding import accumulator


def affine_grid(node: Node) -> Any:
    """The map theta [n, d, d + 1] of the places of a tensor of the size [n, c, extents...].

    A place has its coordinates in the reverse order of the extents.
    """
    theta, size = node[0], node.integers(1)
    is_aligned = bool(node.get("align_corners", 0))
    if size is None or len(size) not in (4, 5):
        raise errors.WorkloadError("its size is not of four or five extents")
    extents, dtype = size[2:], dtype_of(theta)
    if is_aligned and 1 in extents:
        raise errors.WorkloadError("corners of an axis of one element cannot be aligned")
    axes = [_coordinates(extent, is_aligned) for extent in extents]
    grid = np.meshgrid(*axes, indexing="ij")[::-1]
    places = np.stack([*grid, np.ones(extents)], axis=-1).reshape(-1, len(extents) + 1)
    wide = accumulator(dtype)
    maps = node.emit(relax.op.permute_dims(node.cast(theta, wide), [0, 2, 1]))
    result = node.emit(relax.op.matmul(relax.const(places.astype(wide), wide), maps))
    shape = [size[0], *extents, len(extents)]
    return node.cast(node.emit(relax.op.reshape(result, shape)), dtype)


def _coordinates(extent: int, is_aligned: bool) -> np.ndarray:
    """Of the elements of an axis; -1 and 1 are its first and last one, or its ends."""
    if is_aligned:
        return np.linspace(-1, 1, extent)
    return (2 * np.arange(extent) + 1) / extent - 1


#: Operators of this module.
CONVERSIONS: Mapping[str, Callable[[Node], Any]] = {"AffineGrid": affine_grid}
