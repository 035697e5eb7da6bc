"""Where operands lie: in memory (tensor maps) and in shared memory (panels, wgmma descriptors).

An operand is *K-major* if k is contiguous in memory, else its rows (of A) or columns (of B) are,
which are called *lines* here. A stage holds a tile of an operand as panels, each of which one
copy by TMA writes with a swizzle:

    K-major    panel = 128 bytes of k of every line:  [line][k], a row of 128 bytes a line;
               of a convolution a block of channels, which may have 64 or 32 bytes
    MN-major   panel = 128 bytes of lines (64 or 32 where the tile is narrow) of every k of the
               step:  [k][line], a row of `width` bytes a k

Blocks of a cluster that need the same tile copy a share of each panel's rows each, to all of
them (multicast). wgmma finds elements by a descriptor: start address, two strides between the
swizzle's atoms of 8 rows, and the swizzle (PTX ISA, "Matrix descriptor").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from felix.launch_plan import TensorMap
from felix.templates.gemm.problem import GemmProblem, Operand
from felix.tir import grammar

#: Bytes of a row of a panel where nothing is narrower, and rows of an atom of the swizzle.
PANEL_BYTES = 128
ATOM_ROWS = 8
#: A tensor map's strides and addresses are multiples of this.
ALIGNMENT = 16
#: A descriptor's code of a swizzle, by the swizzle's bytes.
_SWIZZLE_CODE = {128: 1, 64: 2, 32: 3}


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """An outer dimension of a tensor map: its extent, its stride in elements, C++ of the place."""

    extent: int
    stride: int
    place: str


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """The batch axes of a tensor; strides in elements, 0 where one matrix serves all.

    Attributes:
        count: matrices of the product.
        inner: extent of the inner of two axes; None where there is one.
    """

    count: int
    inner: int | None = None
    stride: int = 0
    outer_stride: int = 0

    @classmethod
    def of(cls, operand: Operand, problem: GemmProblem) -> Batches:
        """Of an operand of a problem."""
        outer, inner = problem.batch_strides(operand)
        return cls(problem.batch, problem.inner_batch, inner, outer)

    @property
    def both(self) -> tuple[Axis, ...]:
        """The inner axis, and the outer one where there are two."""
        if self.inner is None:
            return (Axis(self.count, self.stride, "batch"),)
        outer = Axis(self.count // self.inner, self.outer_stride, f"batch / {self.inner}")
        return Axis(self.inner, self.stride, f"batch % {self.inner}"), outer

    @property
    def axes(self) -> list[Axis]:
        """Those along which matrices differ, the inner one first."""
        return [axis for axis in self.both if axis.extent > 1 and axis.stride]

    @property
    def inner_matrices(self) -> int:
        """Those that differ along the inner axis."""
        return self.both[0].extent if self.stride else 1

    @property
    def matrices(self) -> int:
        """Matrices that differ."""
        return math.prod(axis.extent for axis in self.axes)

    def packed(self, matrix_elements: int) -> Batches:
        """Those of a copy that has each matrix once, one behind the other."""
        return dataclasses.replace(
            self,
            stride=matrix_elements if self.stride else 0,
            outer_stride=matrix_elements * self.inner_matrices if self.outer_stride else 0,
        )

    def dimensions(self, element_bytes: int, other_bytes: int) -> list[tuple[int, int]]:
        """Extents and strides in bytes of a tensor map's batch axes, the inner one first.

        Args:
            other_bytes: a stride for an axis that has one matrix, as a tensor map has none of 0.
        """
        return [
            (axis.extent, axis.stride * element_bytes) if axis in self.axes else (1, other_bytes)
            for axis in self.both
        ]


def are_aligned(dtype: str, strides: Sequence[int]) -> bool:
    """Whether TMA takes strides in elements: multiples of 16 bytes."""
    size = grammar.element_bytes(dtype)
    return all(stride * size % ALIGNMENT == 0 for stride in strides)


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """An operand in memory as [batch][outer][inner].

    Attributes:
        tensor: number of the parameter or workspace.
        inner, outer: extents in elements.
        outer_stride: in elements.
        is_k_major: whether inner is k.
        inner_stride: 1 but where k has to be the inner axis and is not contiguous.
        offset: elements before the first.
        outer_split: extent and stride of a second axis of outer, which changes slower: element o
            of outer is at o % extent * outer_stride + o // extent * stride. TMA reads no such
            matrix, packing does.
    """

    tensor: int
    dtype: str
    batches: Batches
    inner: int
    outer: int
    outer_stride: int
    is_k_major: bool
    inner_stride: int = 1
    offset: int = 0
    outer_split: tuple[int, int] | None = None

    @property
    def lines(self) -> int:
        """Rows of A or columns of B."""
        return self.outer if self.is_k_major else self.inner

    @property
    def distinct_bytes(self) -> int:
        """Of its elements."""
        elements = self.batches.matrices * self.outer * self.inner
        return elements * grammar.element_bytes(self.dtype)

    @property
    def is_aligned(self) -> bool:
        """Whether TMA can read it: neighbours along inner, all else at multiples of 16 bytes."""
        strides = [axis.stride for axis in self.batches.both]
        strides += [self.outer_stride if self.outer > 1 else 0, self.offset]
        return self.inner_stride == 1 and are_aligned(self.dtype, strides)


def matrix(
    operand: Operand, lines: int, k: int, batches: Batches, needs_k_major: bool = False
) -> Matrix:
    """How an operand of `lines` rows or columns lies in memory, seen K-major if that is needed."""
    _, line_stride, k_stride = operand.strides
    is_k_major = k == 1 or k_stride == 1
    if is_k_major and line_stride == 1 and k == 1 and lines > 1:
        is_k_major = False
    of = operand.param, operand.dtype, batches
    if is_k_major or needs_k_major:
        step = k_stride if k > 1 else 1
        return Matrix(*of, k, lines, line_stride, True, step, operand.offset)
    return Matrix(*of, lines, k, k_stride, False, 1, operand.offset)


def packed(source: Matrix, workspace: int) -> Matrix:
    """The copy of a matrix in a workspace, in the same order, with rows that TMA can read."""
    unit = ALIGNMENT // grammar.element_bytes(source.dtype)
    stride = -(-source.inner // unit) * unit
    return dataclasses.replace(
        source,
        tensor=workspace,
        batches=source.batches.packed(stride * source.outer),
        outer_stride=stride,
        inner_stride=1,
        offset=0,
        outer_split=None,
    )


def packed_bytes(copy: Matrix) -> int:
    """Of a packed copy."""
    elements = copy.batches.matrices * copy.outer * copy.outer_stride
    return elements * grammar.element_bytes(copy.dtype)


class ConvolutionOperand(Protocol):
    """Pixels or weights in memory (`convolution.operands`)."""

    @property
    def tensor(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def is_k_major(self) -> bool: ...
    def tensor_map(self, inner: int, rows: int, swizzle_bytes: int) -> TensorMap:
        """The map of copies of `rows` runs of `inner` contiguous elements."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """A tile of an operand in a stage.

    Attributes:
        source: the operand in memory.
        lines, step: extents of the tile in elements.
        sharers: blocks of the cluster that need this tile.
        channel_block: of a convolution the elements of k that follow each other in both operands.
    """

    source: Matrix | ConvolutionOperand
    lines: int
    step: int
    sharers: int
    channel_block: int | None = None

    @property
    def element_bytes(self) -> int:
        return grammar.element_bytes(self.source.dtype)

    @property
    def width(self) -> int:
        """Bytes of a panel's row, which is also the swizzle's."""
        if self.source.is_k_major and self.channel_block is not None:
            return self.channel_block * self.element_bytes
        if self.source.is_k_major:
            return PANEL_BYTES
        line_bytes = self.lines * self.element_bytes
        return next(width for width in _SWIZZLE_CODE if line_bytes % width == 0)

    @property
    def inner(self) -> int:
        """Elements of a panel's row."""
        return self.width // self.element_bytes

    @property
    def rows(self) -> int:
        """Rows of a panel."""
        return self.lines if self.source.is_k_major else self.step

    @property
    def panels(self) -> int:
        """Panels of the tile."""
        return (self.step if self.source.is_k_major else self.lines) // self.inner

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.width

    @property
    def share_rows(self) -> int:
        """Rows of a panel that one block copies."""
        return self.rows // self.sharers

    @property
    def box_rows(self) -> int:
        """Rows of a panel that one copy brings: a share, but no more than a block of channels."""
        if self.source.is_k_major or self.channel_block is None:
            return self.share_rows
        return min(self.share_rows, self.channel_block)

    @property
    def total_bytes(self) -> int:
        return self.panels * self.panel_bytes

    def tensor_map(self) -> TensorMap:
        """The descriptor by which a block copies its share of a panel."""
        source, size = self.source, self.element_bytes
        if not isinstance(source, Matrix):
            return source.tensor_map(self.inner, self.box_rows, self.width)
        outer_bytes = source.outer_stride * size
        if source.outer == 1:
            outer_bytes = -(-source.inner * size // ALIGNMENT) * ALIGNMENT
        batches = source.batches.dimensions(size, outer_bytes)
        return TensorMap(
            source.tensor,
            source.dtype,
            (source.inner, source.outer, *(extent for extent, _ in batches)),
            (outer_bytes, *(stride for _, stride in batches)),
            (self.inner, self.share_rows, *[1] * len(batches)),
            self.width,
            source.offset * size,
        )

    @property
    def descriptor(self) -> int:
        """The fields of a wgmma descriptor but for the address."""
        between_atoms = ATOM_ROWS * self.width
        # Along k K-major rows stay within an atom; MN-major tiles have the next panel there.
        leading = 1 if self.source.is_k_major else self.panel_bytes >> 4
        return _SWIZZLE_CODE[self.width] << 62 | (between_atoms >> 4) << 32 | leading << 16
