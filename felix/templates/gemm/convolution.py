"""Convolutions as products with a gathered operand.

A convolution's data are read at indices that add iterators of the output and of the sum,

    place = output * stride + tap * dilation - before,

and are 0 where a guard says that the place lies outside. Such a dimension of the data is a
`Window`. Outputs of the windows, after the images, are the rows i; their taps, before the
channels, are k. What both operands have is the batch: groups, and images where those of the
result are not one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from felix.templates.gemm import axes, dimensions, walk
from felix.templates.gemm.axes import MAX_BATCH_AXES, Axis, Group, Spatial
from felix.templates.gemm.dimensions import Convolution, Dimension, Roles
from felix.templates.gemm.problem import Gather, Window
from felix.templates.gemm.stages import NotPlain, require


def of_accesses(
    accesses: walk.Accesses, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Convolution | None:
    """The convolution of a program; None where nothing slides over either operand.

    Raises:
        NotPlain: something does, but not as a convolution.
    """
    every = [Roles(accesses, number, spatial, reduced) for number in (1, 2)]
    for operand, known in zip(accesses.operands, every, strict=True):
        if operand.guards or known.slide(operand):
            return _of_data(accesses, known)
    for known in every:
        if len(known.rows) > 1:
            try:
                return _of_data(accesses, known)
            except NotPlain:
                continue
    return None


def _of_data(accesses: walk.Accesses, known: Roles) -> Convolution | None:
    operand = accesses.operands[known.data - 1]
    dimensions.require_linear(accesses, known.data)
    known.require_all()
    every = dimensions.of_forms(operand, [(index, 1) for index in operand.indices], known)
    require(all(_is_plain(operand, d) for d in every), dimensions.NO_WINDOWS)
    dimensions.require_guards(operand, every)
    channel = dimensions.channel_of(every)
    images, windows = _with_images_apart([d for d in every if d.is_sliding and d is not channel])
    if not windows:
        return None
    dimensions.require_windows(windows)
    dimensions.require_channels(channel, known)
    offset = accesses.tensors[known.other].offset.constant
    return _assembled(known, channel, images, windows, offset)


def _is_plain(operand: walk.Access, d: Dimension) -> bool:
    """Whether a window goes forwards, and groups are neither moved nor padded."""
    has_shared = len(d.factors) > (d.output is not None) + (d.tap is not None)
    is_guarded = any(set(d.factors) & set(axes.coefficients(g)) for g in operand.guards)
    is_moved = has_shared and bool(d.form.constant or is_guarded)
    return min(d.factors.values(), default=1) > 0 and not is_moved


def _with_images_apart(sliding: Sequence[Dimension]) -> tuple[list[Dimension], list[Dimension]]:
    """The outer dimensions that are one axis of images, and the windows."""
    images: list[Dimension] = []
    for d in sliding:
        if not d.is_rows or (images and _step(images[-1]) != d.outputs * _step(d)):
            break
        images.append(d)
    if len(images) == len(sliding):
        images = images[:-1]
    return images, list(sliding[len(images) :])


def _step(dimension: Dimension) -> int:
    """Elements from one output to the next."""
    return dimension.step * dimension.element_stride


def _assembled(
    known: Roles,
    channel: Dimension | None,
    images: Sequence[Dimension],
    windows: Sequence[Dimension],
    offset: int,
) -> Convolution:
    data, other = known.data, known.other
    image_axes = [d.output for d in images if d.output]
    row_axes = [d.output for d in windows if d.output]
    shared = list(known.shared)
    strides = _strides_of(known, [*image_axes, *row_axes])
    if strides is None:
        shared, image_axes, images = [*image_axes, *shared], [], []
        strides = _strides_of(known, row_axes)
    require(
        strides is not None, "its result or what its epilogue reads does not lie pixel by pixel"
    )
    batch = known.merged(shared)
    require(
        len(batch) <= MAX_BATCH_AXES,
        f"{len(batch)} axes of its convolution's batch are not two by the tensors' strides",
    )
    j = known.one(known.columns, "columns")
    tap_axes = [d.tap for d in windows if d.tap]
    k_axes = [*tap_axes, *([channel.tap] if channel and channel.tap else [])]
    stride_of_k = _stride(known.strides[other], k_axes)
    of_k = tuple(stride_of_k or 0 if t == other else 0 for t in range(len(known.strides)))
    gather = Gather(
        images=math.prod(axis.extent for axis in image_axes),
        image_stride=_step(images[-1]) if images else 0,
        windows=tuple(d.window for d in windows),
        channels=channel.taps if channel else 1,
        channel_stride=channel.tap_stride if channel else 1,
    )
    rows = gather.rows
    return Convolution(
        data,
        Spatial(tuple(batch), Group(rows, strides or (), (*image_axes, *row_axes)), j),
        Group(gather.k, of_k),
        (gather, None if stride_of_k is not None else _weights(known, gather, j, k_axes)),
        offset,
    )


def _weights(known: Roles, gather: Gather, j: Group | None, k_axes: Sequence[Axis]) -> Gather:
    """The other operand, of which taps and channels are not one axis: windows of one output."""
    strides = known.strides[known.other]
    taps = k_axes[:-1] if gather.channels > 1 else k_axes
    windows = tuple(Window(1, axis.extent, 1, 1, 0, axis.extent, strides[axis]) for axis in taps)
    return Gather(
        images=j.extent if j else 1,
        image_stride=j.strides[known.other] if j else 0,
        windows=windows,
        channels=gather.channels,
        channel_stride=strides[k_axes[-1]] if gather.channels > 1 else 1,
    )


def _strides_of(known: Roles, order: Sequence[Axis]) -> tuple[int, ...] | None:
    """Of all tensors along axes as one, 0 of the data; None where a tensor has them apart."""
    strides = [
        0 if number == known.data else _stride(of, order)
        for number, of in enumerate(known.strides)
    ]
    return tuple(s for s in strides if s is not None) if None not in strides else None


def _stride(of: Mapping[Axis, int], order: Sequence[Axis]) -> int | None:
    """Of a tensor along axes as one, the last of which changes fastest; None if not one."""
    steps = [of.get(axis, 0) for axis in order]
    for outer, inner, axis in zip(steps, steps[1:], order[1:], strict=False):
        if outer != inner * axis.extent:
            return None
    return steps[-1] if steps else 0
