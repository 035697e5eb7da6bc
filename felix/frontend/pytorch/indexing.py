"""Conversions of PyTorch's indexing.

With indices that count from the end TVM reads outside of the tensor, and several indices behind a
whole dimension give it their outer product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tvm import relax

from felix.frontend.pytorch import conversion
from felix.frontend.pytorch.conversion import arguments


def convert_map(defaults: conversion.Defaults) -> dict[str, conversion.Converter]:
    """The conversions by the operators' names."""
    return {"select.int": _select, "index.Tensor": _index(defaults), "take.default": _take}


def _select(node: torch.fx.Node, importer: Any) -> Any:
    x, dim, index = arguments(node, importer, 3)
    index += int(x.ty.shape[dim]) if index < 0 else 0
    return importer.block_builder.emit(relax.op.take(x, relax.const(index, "int64"), axis=dim))


def _take(node: torch.fx.Node, importer: Any) -> Any:
    x, indices = arguments(node, importer, 2)
    size = math.prod(int(extent) for extent in x.ty.shape)
    flat = importer.block_builder.emit(relax.op.reshape(x, [size]))
    indices = _from_the_beginning(importer, indices, size)
    return importer.block_builder.emit(relax.op.take(flat, indices, axis=0))


def _index(defaults: conversion.Defaults) -> conversion.Converter:
    """x[i, :, j] with tensors of integers, which are broadcast against each other.

    Where the dimensions that they index are neighbours, theirs take the place of these; otherwise
    theirs are the first ones.
    """

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        x, indices = arguments(node, importer, 2)
        if not all(each is None or str(each.ty.dtype).startswith("int") for each in indices):
            return defaults.convert("index.Tensor", node, importer)  # masks
        emit, shape = importer.block_builder.emit, [int(extent) for extent in x.ty.shape]
        axes = [axis for axis, each in enumerate(indices) if each is not None]
        chosen = [_from_the_beginning(importer, indices[axis], shape[axis]) for axis in axes]
        if len(axes) == 1:
            return emit(relax.op.take(x, chosen[0], axis=axes[0]))
        left = [axis for axis in range(len(shape)) if axis not in axes]
        if axes[-1] >= len(axes):
            x = emit(relax.op.permute_dims(x, [*axes, *left]))
        result = emit(relax.op.index_tensor(x, chosen))
        n_before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
        if not n_before:
            return result
        n_chosen = len(result.ty.shape) - len(left)
        places = [*range(n_chosen, n_chosen + n_before), *range(n_chosen)]
        places += range(n_chosen + n_before, len(result.ty.shape))
        return emit(relax.op.permute_dims(result, places))

    return convert


def _from_the_beginning(importer: Any, index: Any, extent: int) -> Any:
    dtype = str(index.ty.dtype)
    emit = importer.block_builder.emit
    is_negative = emit(relax.op.less(index, relax.const(0, dtype)))
    moved = emit(relax.op.add(index, relax.const(extent, dtype)))
    return emit(relax.op.where(is_negative, moved, index))
