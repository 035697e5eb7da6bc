"""The phases of a transposed convolution: how its result is made of ordinary convolutions.

A pixel y = output * stride + phase of a dimension meets data only at each stride-th tap. Which
taps these are and where they meet data depends on the phase alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections import Counter


@dataclasses.dataclass(frozen=True, slots=True)
class PhaseAxis:
    """A dimension of a transposed convolution's result, whose pixel is output * stride + phase.

    Attributes:
        stride: cells of the result from one output of the window to the next.
        extent: of the result; there may be fewer phases than the stride.
        taps: of the weights.
        moves: of each phase, how many places further on the window of the data reads.
        first_taps: of each phase, the first tap of the weights; each `stride`-th follows.
    """

    stride: int
    extent: int
    taps: int
    moves: tuple[int, ...]
    first_taps: tuple[int, ...]

    @property
    def count(self) -> int:
        """Phases."""
        return len(self.moves)

    @property
    def outputs(self) -> int:
        """Of the window in each phase; the last one may lie beyond the result."""
        return -(-self.extent // self.stride)

    @property
    def phase_taps(self) -> tuple[int, ...]:
        """Taps of each phase."""
        return tuple(len(range(first, self.taps, self.stride)) for first in self.first_taps)

    @property
    def most_taps(self) -> int:
        """That any phase has, at least one."""
        return max(1, *self.phase_taps)

    @property
    def pairs(self) -> int:
        """Of a pixel of the result and one of its phase's taps."""
        pixels = [len(range(p, self.extent, self.stride)) for p in range(self.count)]
        return sum(map(operator.mul, pixels, self.phase_taps))


@dataclasses.dataclass(frozen=True, slots=True)
class Phases:
    """A transposed convolution as one convolution for each phase of its result.

    Phases are the outer batch axis, those of the last dimension fastest. Both operands are
    gathered; windows of the weights, which slide over nothing, are dilated by the strides.

    Attributes:
        pixels: the axis of C that is (image, output of each window): 1 is i, 2 is j.
        images: their number.
        axes: of each window.
        output, reads: strides of image and pixel in each tensor; those of their axis are 0.
    """

    pixels: int
    images: int
    axes: tuple[PhaseAxis, ...]
    output: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Phases of all dimensions together."""
        return math.prod(axis.count for axis in self.axes)

    @property
    def extents(self) -> tuple[int, ...]:
        """Of what `output` and `reads` have the strides of."""
        return self.images, *(axis.extent for axis in self.axes)

    @property
    def moves(self) -> tuple[tuple[int, ...], ...]:
        """Of each window of the data, how far each phase moves it."""
        return tuple(axis.moves for axis in self.axes)

    @property
    def taps(self) -> Counter[int]:
        """Of all windows together; how many phases have so many."""
        every = itertools.product(*(axis.phase_taps for axis in self.axes))
        return Counter(map(math.prod, every))

    @property
    def most_taps(self) -> int:
        """That k has room for."""
        return math.prod(axis.most_taps for axis in self.axes)

    def lengths(self, k: int) -> Counter[int]:
        """Of the sums of a group; how many phases have which. `k` is the longest."""
        channels = k // self.most_taps
        return Counter({taps * channels: count for taps, count in self.taps.items()})
