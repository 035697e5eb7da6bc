"""Dimensions of the tensor maps of a convolution's operands, and how its sum is divided: by taps,
and by blocks of channels of a tap.

A panel of a stage has a block of channels of one tap, of both operands. The last block of a tap
is filled up with zeros, so k counts more elements here than the problem's: `extent`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from felix.launch_plan import Im2col, TensorMap
from felix.templates.gemm.hopper import layout
from felix.templates.gemm.problem import Gather, GemmProblem
from felix.tir import grammar


def tensor_map(
    source: layout.ConvolutionOperand,
    first: tuple[int, int],
    others: Sequence[tuple[int, int]],
    box: tuple[int, ...],
    swizzle_bytes: int,
    im2col: Im2col | None,
) -> TensorMap:
    """The map of an operand.

    Args:
        first: extent and stride in elements of the innermost dimension.
        others: of the others. One of extent 1 gets a stride that maps may have.
    """
    size = grammar.element_bytes(source.dtype)
    extents, strides_bytes = [first[0]], []
    whole = -(-first[0] * size // layout.ALIGNMENT) * layout.ALIGNMENT
    for extent, stride in others:
        strides_bytes.append(stride * size if extent > 1 else whole)
        extents.append(extent)
        whole = max(whole, strides_bytes[-1] * extent)
    return TensorMap(
        source.tensor,
        source.dtype,
        tuple(extents),
        tuple(strides_bytes),
        box,
        swizzle_bytes,
        source.offset * size,
        im2col,
    )


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
    gather = problem.a.gather or problem.b.gather  # of both, taps and channels are the same
    if gather is None:
        return None
    taps = math.prod(window.taps for window in gather.windows)
    size = problem.a.element_bytes
    choices = [ChannelBlocks(taps, gather.channels, width // size) for width in _WIDTHS]
    return min(choices, key=lambda choice: choice.extent)


def taps_as_one_axis(gather: Gather) -> int | None:
    """Elements from a tap to the next one of weights that are gathered; None if it has no such.

    Weights that are gathered have no windows that move: each line has an image of its own.
    """
    step, taps = None, 1
    for window in reversed(gather.windows):
        if window.outputs > 1 or not window.is_inside or window.before:
            return None
        stride = window.dilation * window.element_stride
        step = stride if step is None else step
        if window.taps > 1 and stride != taps * step:
            if taps > 1:
                return None
            step = stride
        taps *= window.taps
    return step


def pixels_are_a(problem: GemmProblem) -> bool | None:
    """Whether A has the pixels; None if neither operand can be the weights."""
    if problem.a.gather is None or problem.b.gather is None:
        return problem.a.gather is not None
    if taps_as_one_axis(problem.b.gather) is not None:
        return True
    return None if taps_as_one_axis(problem.a.gather) is None else False


def extent_of_k(problem: GemmProblem) -> int:
    """Elements that the steps of a sum cover: k, of a convolution with its zeros."""
    blocks = of(problem)
    return problem.k if blocks is None else blocks.extent
