"""The operand that is multiplied with pixels, and the map by which it is copied.

It is [batch][line][tap][channel] with the channels or the lines contiguous; others are packed so
that the channels are. Its map has a
dimension for taps, so that a block of channels ends at a tap's end: zeros are where the pixels
have them.
"""

from __future__ import annotations

import dataclasses

from felix.launch_plan import TensorMap
from felix.templates.gemm.hopper import dtypes, layout
from felix.templates.gemm.hopper.convolution import axes, channel_blocks
from felix.templates.gemm.hopper.convolution.channel_blocks import ChannelBlocks
from felix.templates.gemm.problem import GemmProblem, Operand


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
    batches: axes.Batches
    is_k_major: bool
    offset: int

    @property
    def is_aligned(self) -> bool:
        """Whether TMA can read it: the contiguous axis is, all else at multiples of 16 bytes."""
        (_, inner_stride), *others = self._dimensions
        strides = [stride for extent, stride in others if extent > 1]
        return inner_stride == 1 and axes.are_aligned(self.dtype, [*strides, self.offset])

    @property
    def distinct_bytes(self) -> int:
        """Of its elements."""
        elements = self.lines * self.blocks.taps * self.blocks.channels
        return self.batches.matrices * elements * dtypes.size_bytes(self.dtype)

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
        unit = layout.ALIGNMENT // dtypes.size_bytes(self.dtype)
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
        return Weights(
            copy.tensor,
            self.dtype,
            self.lines,
            self.blocks,
            strides,
            self.batches.of_copy(copy),
            self.is_k_major,
            0,
        )

    def _matrix(
        self, inner: int, outer: int, stride: int, step: int, split: tuple[int, int] | None = None
    ) -> layout.Matrix:
        batches = self.batches
        return layout.Matrix(
            self.tensor,
            self.dtype,
            batches.count,
            inner,
            outer,
            stride,
            batches.stride,
            self.is_k_major,
            step,
            batches.inner,
            batches.outer_stride,
            self.offset,
            split,
        )

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
    batches = axes.Batches.of(operand, problem)
    if operand.gather is not None:
        places = channel_blocks.taps_as_one_axis(operand.gather)
        assert places is not None
        strides = (operand.gather.image_stride, places, operand.gather.channel_stride)
        return Weights(
            operand.param, operand.dtype, lines, blocks, strides, batches, True, operand.offset
        )
    is_one = problem.k == 1
    is_k_major = needs_k_major or k == 1 or (is_one and line != 1)
    step = 1 if is_one and is_k_major else k
    strides = (line, blocks.channels * step, step)
    return Weights(
        operand.param, operand.dtype, lines, blocks, strides, batches, is_k_major, operand.offset
    )
