"""How the sum of a convolution is divided: by taps, and by blocks of channels of a tap.

A panel of a stage has a block of channels of one tap, of both operands. The last block of a tap
is filled up with zeros, so k counts more elements here than the problem's: `extent`.
"""

from __future__ import annotations

import dataclasses
import math

from felix.templates.gemm.hopper import dtypes
from felix.templates.gemm.problem import GemmProblem

#: Bytes that a block of channels may have: those of swizzles, the widest first.
_WIDTHS = (128, 64, 32)


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelBlocks:
    """A sum over `taps` of `channels` elements each, `block` of them at once."""

    taps: int
    channels: int
    block: int

    @property
    def of_tap(self) -> int:
        """Blocks of a tap."""
        return -(-self.channels // self.block)

    @property
    def extent(self) -> int:
        """Elements of k, zeros behind each tap's last channel counted."""
        return self.taps * self.of_tap * self.block


def of(problem: GemmProblem) -> ChannelBlocks | None:
    """The blocks of a convolution: as few zeros as possible, then as wide as possible."""
    gather = problem.a.gather or problem.b.gather
    if gather is None:
        return None
    taps = math.prod(window.taps for window in gather.windows)
    size = dtypes.size_bytes(problem.a.dtype)
    choices = [ChannelBlocks(taps, gather.channels, width // size) for width in _WIDTHS]
    return min(choices, key=lambda choice: choice.extent)


def extent_of_k(problem: GemmProblem) -> int:
    """Elements that the steps of a sum cover: k, of a convolution with its zeros."""
    blocks = of(problem)
    return problem.k if blocks is None else blocks.extent
