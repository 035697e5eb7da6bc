"""The operands of a convolution in memory, the maps by which they are copied, and why the copy
engine cannot gather some.

Dimensions of the im2col map of pixels, innermost first: channels, the windows' dimensions from
the last to the first, images if there are several, the batch axes (groups). The last of all is
what im2col mode takes for images, those between it and the channels are its spatial dimensions.
Of a window with outputs O, taps T, stride S, dilation D, padding P before and an extent E:

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

The operand that is multiplied with pixels is [batch][line][tap][channel] with the channels or the
lines contiguous; others are packed so that the channels are. Its map has a dimension for taps, so
that a block of channels ends at a tap's end: zeros are where the pixels have them.
"""

from __future__ import annotations

import dataclasses

from felix import launch_plan
from felix.launch_plan import Im2col, TensorMap
from felix.templates.gemm.ampere import layout as gathered
from felix.templates.gemm.hopper import layout
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.hopper.convolution.axes import ChannelBlocks
from felix.templates.gemm.hopper.layout import Axis, Batches
from felix.templates.gemm.problem import Gather, GemmProblem, Operand, Window
from felix.tir import grammar


@dataclasses.dataclass(frozen=True, slots=True)
class Pixels:
    """The gathered operand; `offset` elements lie before its first."""

    tensor: int
    dtype: str
    gather: Gather
    batches: Batches
    offset: int

    @property
    def is_k_major(self) -> bool:
        """Channels are what a panel's rows have."""
        return True

    @property
    def outer_axes(self) -> list[Axis]:
        """Images and batch axes, of which a map has one at least."""
        batches, gather = self.batches.axes, self.gather
        if gather.images > 1 or not batches:
            return [Axis(gather.images, gather.image_stride, "pixel"), *batches]
        return batches

    @property
    def rank(self) -> int:
        """Dimensions of the tensor map."""
        return 1 + len(self.gather.windows) + len(self.outer_axes)

    @property
    def is_aligned(self) -> bool:
        """Whether TMA can read it: adjacent channels, all else at multiples of 16 bytes."""
        strides = [stride for extent, stride in self._dimensions if extent > 1]
        return self.gather.channel_stride == 1 and layout.are_aligned(
            self.dtype, [*strides, self.offset]
        )

    @property
    def distinct_bytes(self) -> int:
        """Of the elements that are read."""
        elements = self.batches.matrices * gathered.distinct_elements(self.gather, None)
        return elements * grammar.element_bytes(self.dtype)

    @property
    def reads(self) -> int:
        """Elements that the rows of all matrices of the product read, padding left out."""
        return self.batches.count * gathered.inside_elements(self.gather, None)

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
        gather = self.gather
        step = gather.windows[-1].element_stride
        pixels, is_even = 1, True
        for window in reversed(gather.windows):
            is_even &= window.extent == 1 or window.element_stride == pixels * step
            pixels *= window.extent
        split = (pixels, gather.image_stride) if gather.images > 1 else None
        if not is_even:
            return None
        of = self.tensor, self.dtype, self.batches
        shape = gather.channels, gather.images * pixels, step
        return layout.Matrix(*of, *shape, True, gather.channel_stride, self.offset, split)

    def of_copy(self, copy: layout.Matrix) -> Pixels:
        """The pixels in the packed copy of `packable`."""
        gather = self.gather.packed(self.gather.channels, copy.outer_stride)
        return dataclasses.replace(
            self, tensor=copy.tensor, gather=gather, batches=copy.batches, offset=0
        )

    @property
    def _dimensions(self) -> list[tuple[int, int]]:
        """Extents and strides in elements of the map's dimensions but for the channels."""
        spatial = [(w.extent, w.element_stride) for w in reversed(self.gather.windows)]
        return spatial + [(axis.extent, axis.stride) for axis in self.outer_axes]


def pixels_of(operand: Operand, problem: GemmProblem) -> Pixels:
    """The gathered operand of a problem that has the pixels, where it lies."""
    assert operand.gather is not None
    batches = Batches.of(operand, problem)
    return Pixels(operand.param, operand.dtype, operand.gather, batches, operand.offset)


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """The operand that is multiplied with pixels, [line][tap][channel] by strides in elements.

    Attributes:
        is_k_major: whether the channels are contiguous, or have to be; else the lines are.
        offset: elements before the first.
    """

    tensor: int
    dtype: str
    lines: int
    blocks: ChannelBlocks
    strides: tuple[int, int, int]
    batches: Batches
    is_k_major: bool
    offset: int

    @property
    def is_aligned(self) -> bool:
        """Whether TMA can read it: the contiguous axis is, all else at multiples of 16 bytes."""
        (_, inner_stride), *others = self._dimensions
        strides = [stride for extent, stride in others if extent > 1]
        return inner_stride == 1 and layout.are_aligned(self.dtype, [*strides, self.offset])

    @property
    def distinct_bytes(self) -> int:
        """Of its elements."""
        elements = self.lines * self.blocks.taps * self.blocks.channels
        return self.batches.matrices * elements * grammar.element_bytes(self.dtype)

    def tensor_map(self, inner: int, rows: int, swizzle_bytes: int) -> TensorMap:
        """The map by which a block of channels of a tap and some lines are copied.

        `inner` elements are of the contiguous axis, `rows` of the other.
        """
        first, *others = self._dimensions
        ones = [1] * len(self.batches.axes)
        box = (inner, 1, rows, *ones) if self.is_k_major else (inner, rows, 1, *ones)
        return axes.tensor_map(self, first, others, box, swizzle_bytes, None)

    @property
    def packable(self) -> layout.Matrix:
        """A matrix whose packed copy TMA can read as weights."""
        line, tap, channel = self.strides
        taps, channels = self.blocks.taps, self.blocks.channels
        unit = layout.ALIGNMENT // grammar.element_bytes(self.dtype)
        if not self.is_k_major:
            return self._matrix(self.lines, taps * channels, channel, line)
        if taps == 1 or (tap == channels * channel and channels % unit == 0):
            return self._matrix(taps * channels, self.lines, line, channel)
        return self._matrix(channels, self.lines * taps, tap, channel, (taps, line))

    def of_copy(self, copy: layout.Matrix) -> Weights:
        """The weights in the packed copy of `packable`."""
        taps, channels, row = self.blocks.taps, self.blocks.channels, copy.outer_stride
        strides = (row, channels, 1)
        if not self.is_k_major:
            strides = (1, channels * row, row)
        elif copy.outer == self.lines * taps:
            strides = (taps * row, row, 1)
        return dataclasses.replace(
            self, tensor=copy.tensor, strides=strides, batches=copy.batches, offset=0
        )

    def _matrix(
        self, inner: int, outer: int, stride: int, step: int, split: tuple[int, int] | None = None
    ) -> layout.Matrix:
        of, shape = (self.tensor, self.dtype, self.batches), (inner, outer, stride)
        return layout.Matrix(*of, *shape, self.is_k_major, step, self.offset, split)

    @property
    def _dimensions(self) -> list[tuple[int, int]]:
        """Extents and strides in elements of the map's dimensions, innermost first."""
        line, tap, channel = self.strides
        lines, taps = (self.lines, line), (self.blocks.taps, tap)
        channels = (self.blocks.channels, channel)
        matrix = [channels, taps, lines] if self.is_k_major else [lines, channels, taps]
        return matrix + [(axis.extent, axis.stride) for axis in self.batches.axes]


def weights_of(
    operand: Operand, problem: GemmProblem, lines: int, blocks: ChannelBlocks, needs_k_major: bool
) -> Weights:
    """The other operand of a problem, where it lies, seen K-major if that is needed."""
    _, line, k = operand.strides
    gather, is_one = operand.gather, problem.k == 1
    is_k_major = gather is not None or needs_k_major or k == 1 or (is_one and line != 1)
    step = 1 if is_one and is_k_major else k
    strides = (line, blocks.channels * step, step)
    if gather is not None:
        places = axes.taps_as_one_axis(gather)
        assert places is not None
        strides = (gather.image_stride, places, gather.channel_stride)
    of, batches = (operand.param, operand.dtype), Batches.of(operand, problem)
    return Weights(*of, lines, blocks, strides, batches, is_k_major, operand.offset)


def unsuited(problem: GemmProblem) -> str | None:
    """Why a problem with a gathered operand is not for the template; None if it is."""
    if problem.a.gather is None and problem.b.gather is None:
        return None
    is_a = axes.pixels_are_a(problem)
    if is_a is None:
        return "both of its operands are gathered from windows that move"
    pixels = pixels_of(problem.a if is_a else problem.b, problem)
    if not pixels.is_aligned and pixels.packable is None:
        return "pixels that the copy engine cannot read are not evenly spaced either"
    if pixels.rank not in launch_plan.CORNERS:
        return (
            f"images, groups and windows are {pixels.rank} dimensions with the channels, "
            f"the copy engine has {max(launch_plan.CORNERS)}"
        )
    return next(filter(None, (_why_not(w, pixels.rank) for w in pixels.gather.windows)), None)


def _why_not(window: Window, rank: int) -> str | None:
    """Why no tensor map of so many dimensions has a window."""
    if not 1 <= window.stride <= launch_plan.LARGEST_STRIDE:
        return f"the copy engine has no stride of {window.stride}"
    least, most = launch_plan.CORNERS[rank]
    after = (window.outputs - 1) * window.stride - window.before - (window.extent - 1)
    if not least <= -window.before <= most or not least <= after <= most:
        return (
            f"windows begin {window.before} before their dimension and the last {-after} before "
            f"its end, the copy engine has {least} to {most}"
        )
    reach = (window.taps - 1) * window.dilation
    if not 0 <= reach <= launch_plan.LARGEST_OFFSET[rank]:
        return (
            f"a window reaches over {reach} places, the copy engine over "
            f"{launch_plan.LARGEST_OFFSET[rank]}"
        )
    return None
