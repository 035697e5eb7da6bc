"""Convolutions as products with a gathered operand.

A convolution's data are read at indices that add iterators of the output and of the sum,

    place = output * stride + tap * dilation - before,

and are 0 where a guard says that the place lies outside. Such a dimension of the data is a
`Window`. Outputs of the windows, after the images, are the rows i; their taps, before the
channels, are k. What both operands have is the batch: groups, and images where those of the
result are not one after the other.

Notation: tensors are numbered as in `walk.Accesses.tensors`: output, both operands, reads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from felix.templates.gemm import axes, walk
from felix.templates.gemm.axes import MAX_BATCH_AXES, Axis, Group, Spatial
from felix.templates.gemm.problem import Gather, Window
from felix.templates.gemm.stages import NotPlain, require
from felix.tir.ranges import Linear

_MAX_WINDOWS = 3

#: Coefficients of a form.
Strides: TypeAlias = Mapping[Axis, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution's axes, and how its operands are gathered.

    Attributes:
        data: the number, 1 or 2, of the tensor whose rows are i; the other one has j.
        spatial, k: its axes. Strides along what a `Gather` says are 0.
        gathers: of the data, and of the other operand unless its strides describe it.
    """

    data: int
    spatial: Spatial
    k: Group
    gathers: tuple[Gather, Gather | None]

    @property
    def slides(self) -> bool:
        """Whether a window is more than an axis of rows."""
        return any(w.taps > 1 or w.stride > 1 or not w.is_inside for w in self.gathers[0].windows)


class _Axes:
    """The axes of a program's tensors, told apart as those of a product of `data` and another."""

    def __init__(
        self, accesses: walk.Accesses, data: int, spatial: Sequence[Axis], reduced: Sequence[Axis]
    ) -> None:
        self.data, self.other = data, 3 - data
        self.strides = [axes.coefficients(tensor.offset) for tensor in accesses.tensors]
        in_data, in_other = self.strides[self.data], self.strides[self.other]
        self.rows = [axis for axis in spatial if axis in in_data and axis not in in_other]
        self.columns = [axis for axis in spatial if axis in in_other and axis not in in_data]
        self.shared = [axis for axis in spatial if axis in in_other and axis in in_data]
        self.reduced = list(reduced)
        self.has_all = set(spatial) <= {*self.rows, *self.columns, *self.shared} and all(
            axis in in_data and axis in in_other for axis in reduced
        )

    def stride(self, tensor: int, order: Sequence[Axis]) -> int | None:
        """Of a tensor along axes as one, the last of which changes fastest; None if not one."""
        steps = [self.strides[tensor].get(axis, 0) for axis in order]
        for outer, inner, axis in zip(steps, steps[1:], order[1:], strict=False):
            if outer != inner * axis.extent:
                return None
        return steps[-1] if steps else 0

    def strides_of(self, order: Sequence[Axis], gathered: Sequence[int]) -> tuple[int, ...] | None:
        """Of all tensors; 0 of gathered ones."""
        strides = [
            0 if tensor in gathered else self.stride(tensor, order)
            for tensor in range(len(self.strides))
        ]
        return tuple(s for s in strides if s is not None) if None not in strides else None


def of_accesses(
    accesses: walk.Accesses, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Convolution | None:
    """The convolution of a program; None where nothing slides over either operand.

    Raises:
        NotPlain: something does, but not as a convolution.
    """
    for number, operand in enumerate(accesses.operands, start=1):
        known = _Axes(accesses, number, spatial, reduced)
        if operand.guards or _adds_axes(operand, known):
            return _of_data(accesses, known)
    for number in (1, 2):
        known = _Axes(accesses, number, spatial, reduced)
        if len(known.rows) > 1:
            try:
                return _of_data(accesses, known)
            except NotPlain:
                continue
    return None


def _adds_axes(operand: walk.Access, known: _Axes) -> bool:
    """Whether an index is a sum of an axis of rows and of one of k."""
    return any(
        {axis for axis, _ in index.terms} & set(known.rows)
        and {axis for axis, _ in index.terms} & set(known.reduced)
        for index in operand.indices
    )


def _of_data(accesses: walk.Accesses, known: _Axes) -> Convolution | None:
    operand = accesses.operands[known.data - 1]
    others = [t for t in accesses.tensors if t is not operand]
    require(
        all(axes.strides_of(t.offset) is not None for t in others),
        "a tensor of its convolution is not read or written at a linear form of its iterators",
    )
    require(known.has_all, "its convolution has an axis that one of its operands does not have")
    every = _dimensions_of(operand, known.rows, known.reduced)
    channel = _channel(every, known)
    sliding = [d for d in every if (d.output or d.tap or d.index.constant) and d is not channel]
    images, windows = _with_images_apart(sliding)
    if not windows:
        return None
    require(len(windows) <= _MAX_WINDOWS, f"its convolution has {len(windows)} windows")
    return _assembled(known, channel, images, windows)


def _channel(every: Sequence[Dimension], known: _Axes) -> Dimension | None:
    """The dimension of channels: the last one that only k has, or None if there is none.

    Where channels are first it is the outermost one: behind it come windows of one output.
    """
    only = [d for d in every if d.tap and not d.output and not d.index.constant]
    only = [d for d in only if d.window.is_inside]
    last = [d for d in only if d.tap and known.strides[known.data][d.tap] == 1]
    return next(iter(last or only), None)


def _with_images_apart(sliding: Sequence[Dimension]) -> tuple[list[Dimension], list[Dimension]]:
    """The outer dimensions that are one axis of images, and the windows."""
    images: list[Dimension] = []
    for d in sliding:
        window = d.window
        step = window.stride * window.element_stride
        if not d.is_rows or (images and _step(images[-1]) != window.outputs * step):
            break
        images.append(d)
    if len(images) == len(sliding):
        images = images[:-1]
    return images, list(sliding[len(images) :])


def _step(dimension: Dimension) -> int:
    """Elements from one output to the next."""
    return dimension.window.stride * dimension.stride


def _assembled(
    known: _Axes,
    channel: Dimension | None,
    images: Sequence[Dimension],
    windows: Sequence[Dimension],
) -> Convolution:
    data, other = known.data, known.other
    channels = channel.tap.extent if channel and channel.tap else 1
    require(
        channels > 1 or not known.shared,
        "each group of its convolution has one channel, so that tensor cores would mostly "
        "multiply zeros",
    )
    image_axes = [d.output for d in images if d.output]
    row_axes = [d.output for d in windows if d.output]
    shared = list(known.shared)
    strides = known.strides_of([*image_axes, *row_axes], (data,))
    if strides is None:
        shared, image_axes, images = [*image_axes, *shared], [], []
        strides = known.strides_of(row_axes, (data,))
    require(
        strides is not None, "its result or what its epilogue reads does not lie pixel by pixel"
    )
    batch = axes.merged(axes.groups_of(shared, known.strides), 0)
    require(
        len(batch) <= MAX_BATCH_AXES,
        f"{len(batch)} axes of its convolution's batch are not two by the tensors' strides",
    )
    columns = axes.merged(axes.groups_of(known.columns, known.strides), 0)
    require(len(columns) <= 1, "several axes of its convolution's columns are not one")
    j = next(iter(columns), None)
    tap_axes = [d.tap for d in windows if d.tap]
    k_axes = [*tap_axes, *([channel.tap] if channel and channel.tap else [])]
    stride_of_k = known.stride(other, k_axes)
    of_k = tuple(stride_of_k or 0 if t == other else 0 for t in range(len(known.strides)))
    gather = Gather(
        images=math.prod(axis.extent for axis in image_axes),
        image_stride=_step(images[-1]) if images else 0,
        windows=tuple(d.window for d in windows),
        channels=channels,
        channel_stride=known.strides[data][channel.tap] if channel and channel.tap else 1,
    )
    rows = gather.rows
    return Convolution(
        data,
        Spatial(tuple(batch), Group(rows, strides or (), (*image_axes, *row_axes)), j),
        Group(gather.k, of_k),
        (gather, None if stride_of_k is not None else _weights(known, gather, j, k_axes)),
    )


def _weights(known: _Axes, gather: Gather, j: Group | None, k_axes: Sequence[Axis]) -> Gather:
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


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of `extent`, whose neighbours are `stride` elements apart.

    Attributes:
        output: the axis of rows in its index.
        tap: the axis of the sum in its index.
    """

    index: Linear
    extent: int
    stride: int
    output: Axis | None
    tap: Axis | None

    @property
    def is_rows(self) -> bool:
        """Whether it is an axis of rows that nothing slides over or pads."""
        return self.tap is None and self.index.constant == 0 and self.window.is_inside

    @property
    def window(self) -> Window:
        factors = dict(self.index.terms)
        return Window(
            outputs=self.output.extent if self.output else 1,
            taps=self.tap.extent if self.tap else 1,
            stride=factors[self.output] if self.output else 1,
            dilation=factors[self.tap] if self.tap else 1,
            before=-self.index.constant,
            extent=self.extent,
            element_stride=self.stride,
        )


def _dimensions_of(
    operand: walk.Access, rows: Sequence[Axis], reduced: Sequence[Axis]
) -> list[Dimension]:
    """The dimensions of an operand, outer ones first.

    Args:
        rows: the axes that the operand alone has of the result.
        reduced: the axes of the sum.

    Raises:
        NotPlain: an index is not of this form, or guards are other than the tensor's bounds.
    """
    result: list[Dimension] = []
    met: set[Axis] = set()
    stride = math.prod(operand.extents)
    for index, extent in zip(operand.indices, operand.extents, strict=True):
        stride //= extent
        factors = axes.coefficients(index)
        outputs = [axis for axis in factors if axis in rows]
        taps = [axis for axis in factors if axis in reduced]
        has_shared = len(factors) > len(outputs) + len(taps)
        is_plain = len(factors) == len(index.terms) and min(factors.values(), default=1) > 0
        is_plain &= len(outputs) <= 1 and len(taps) <= 1 and not met & set(factors)
        is_plain &= not (has_shared and (outputs or index.constant or _is_guarded(operand, index)))
        require(is_plain, "the data of its convolution are read at indices that are no windows")
        output, tap = outputs[0] if outputs else None, taps[0] if taps else None
        result.append(Dimension(index, extent, stride, output, tap))
        met |= set(factors)
    _require_padding(operand, result)
    return result


def _is_guarded(operand: walk.Access, index: Linear) -> bool:
    """Whether a guard has one of the index's axes."""
    of_index = set(axes.coefficients(index))
    return any(of_index & set(axes.coefficients(guard)) for guard in operand.guards)


def _require_padding(operand: walk.Access, dimensions: Sequence[Dimension]) -> None:
    """Guards say that a place lies inside of the data, and what may lie outside is guarded."""
    bounds = {d.index: d.extent for d in dimensions}
    inside = {index for index in bounds if index in operand.guards}
    below = {index for index, extent in bounds.items() if _below(index, extent) in operand.guards}
    of_bounds = {*inside, *(_below(index, bounds[index]) for index in below)}
    require(
        set(operand.guards) == of_bounds,
        "the data of its convolution are 0 elsewhere than outside of their bounds",
    )
    for d in dimensions:
        if d.output or d.tap or d.index.constant:
            last = sum(
                factor * (axis.extent - 1) for axis, factor in axes.coefficients(d.index).items()
            )
            is_sound = (d.index.constant >= 0 or d.index in inside) and (
                last + d.index.constant < d.extent or d.index in below
            )
            require(is_sound, "its convolution reads beyond its data")


def _below(index: Linear, extent: int) -> Linear:
    """What is 0 or more where the index is less than the extent."""
    return index.scaled(-1).shifted(extent - 1)
