"""The gathered operand of a convolution in memory, and the im2col map by which it is copied.

Dimensions of their map, innermost first: channels, the windows' dimensions from the last to
the first, images if there are several, the batch axes (groups). The last of all is what im2col
mode takes for images, those between it and the channels are its spatial dimensions. Of a
window with outputs O, taps T, stride S, dilation D, padding P before and an extent E:

    lower corner       -P                      where tap 0 of output 0 reads
    upper corner       (O - 1)·S - P - (E - 1)  so that the box ends where tap 0 of the last
                                               output reads: E - 1 + upper = (O - 1)·S - P
    traversal stride   S                       so that a row of the box has O places
    start              o·S - P                 for the first output o of a copy
    offset             t·D                     for tap t: what is read is o·S + t·D - P

Images and batch axes that are spatial dimensions of the map have corners 0 and stride 1, and
offset 0. A copy takes `block` channels (channels per pixel) of as many neighbouring output
pixels as a block's share of a tile has lines (pixels per column). What is read outside of the
tensor is 0: padding, channels of the last block behind the last one, images behind the last.
A copy that goes on behind the last image of a matrix of the batch may read the next matrix;
those lines are not stored.
"""

from __future__ import annotations

import collections
import dataclasses
import math

from felix.launch_plan import Im2col, TensorMap
from felix.templates.gemm.hopper import dtypes, layout
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.problem import Gather, GemmProblem, Operand, Window


@dataclasses.dataclass(frozen=True, slots=True)
class Pixels:
    """The gathered operand; `offset` elements lie before its first."""

    tensor: int
    dtype: str
    gather: Gather
    batches: axes.Batches
    offset: int

    @property
    def is_k_major(self) -> bool:
        """Channels are what a panel's rows have."""
        return True

    @property
    def outer_axes(self) -> list[axes.Axis]:
        """Images and batch axes, of which a map has one at least."""
        batches, gather = self.batches.axes, self.gather
        if gather.images > 1 or not batches:
            return [axes.Axis(gather.images, gather.image_stride, "pixel"), *batches]
        return batches

    @property
    def rank(self) -> int:
        """Dimensions of the tensor map."""
        return 1 + len(self.gather.windows) + len(self.outer_axes)

    @property
    def is_aligned(self) -> bool:
        """Whether TMA can read it: adjacent channels, all else at multiples of 16 bytes."""
        strides = [stride for extent, stride in self._dimensions if extent > 1]
        return self.gather.channel_stride == 1 and axes.are_aligned(
            self.dtype, [*strides, self.offset]
        )

    @property
    def distinct_bytes(self) -> int:
        """Of the elements that are read."""
        places = math.prod(len(_reads_of(window)) for window in self.gather.windows)
        elements = self.batches.matrices * self.gather.images * places * self.gather.channels
        return elements * dtypes.size_bytes(self.dtype)

    @property
    def reads(self) -> int:
        """Elements that the rows of all matrices of the product read, padding left out."""
        places = math.prod(_reads_of(window).total() for window in self.gather.windows)
        return self.batches.count * self.gather.images * places * self.gather.channels

    def tensor_map(self, inner: int, rows: int, swizzle_bytes: int) -> TensorMap:
        """The map by which `inner` channels of `rows` output pixels are copied."""
        windows = self.gather.windows[::-1]
        rest = (0,) * (len(self.outer_axes) - 1)
        walk = Im2col(
            tuple(-w.before for w in windows) + rest,
            tuple((w.outputs - 1) * w.stride - w.before - (w.extent - 1) for w in windows) + rest,
            tuple(w.stride for w in windows) + (1,) * len(rest),
        )
        return axes.tensor_map(
            self, (self.gather.channels, 1), self._dimensions, (inner, rows), swizzle_bytes, walk
        )

    @property
    def packable(self) -> layout.Matrix | None:
        """All its pixels as the lines of a matrix; None if an image's are unevenly spaced."""
        gather, batches = self.gather, self.batches
        step = gather.windows[-1].element_stride
        pixels, is_even = 1, True
        for window in reversed(gather.windows):
            is_even &= window.extent == 1 or window.element_stride == pixels * step
            pixels *= window.extent
        split = (pixels, gather.image_stride) if gather.images > 1 else None
        if not is_even:
            return None
        return layout.Matrix(
            self.tensor,
            self.dtype,
            batches.count,
            gather.channels,
            gather.images * pixels,
            step,
            batches.stride,
            True,
            gather.channel_stride,
            batches.inner,
            batches.outer_stride,
            self.offset,
            split,
        )

    def of_copy(self, copy: layout.Matrix) -> Pixels:
        """The pixels in the packed copy of `packable`."""
        step = copy.outer_stride
        windows: list[Window] = []
        for window in reversed(self.gather.windows):
            windows.insert(0, dataclasses.replace(window, element_stride=step))
            step *= window.extent
        gather = dataclasses.replace(
            self.gather, image_stride=step, windows=tuple(windows), channel_stride=1
        )
        return Pixels(copy.tensor, copy.dtype, gather, self.batches.of_copy(copy), 0)

    @property
    def _dimensions(self) -> list[tuple[int, int]]:
        """Extents and strides in elements of the map's dimensions but for the channels."""
        spatial = [(w.extent, w.element_stride) for w in reversed(self.gather.windows)]
        return spatial + [(axis.extent, axis.stride) for axis in self.outer_axes]


def pixels_of(operand: Operand, problem: GemmProblem) -> Pixels:
    """The gathered operand of a problem that has the pixels, where it lies."""
    assert operand.gather is not None
    batches = axes.Batches.of(operand, problem)
    return Pixels(operand.param, operand.dtype, operand.gather, batches, operand.offset)


def _reads_of(window: Window) -> collections.Counter[int]:
    """Places of a dimension, by how many taps of outputs read them."""
    places = collections.Counter(
        output * window.stride + tap * window.dilation - window.before
        for output in range(window.outputs)
        for tap in range(window.taps)
    )
    return collections.Counter(
        {place: count for place, count in places.items() if 0 <= place < window.extent}
    )
