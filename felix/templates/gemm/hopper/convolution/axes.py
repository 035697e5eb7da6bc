"""Dimensions of the tensor maps of a convolution's operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from felix.launch_plan import Im2col, TensorMap
from felix.templates.gemm.hopper import dtypes, layout
from felix.templates.gemm.problem import GemmProblem, Operand


class Source(Protocol):
    """Where an operand lies: parameter or workspace, dtype, elements before its first."""

    @property
    def tensor(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def offset(self) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """An outer dimension of a tensor map: its extent, its stride in elements, C++ of the place."""

    extent: int
    stride: int
    place: str


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """The batch axes of an operand; strides in elements, 0 where one matrix serves all.

    Attributes:
        count: matrices of the product.
        inner: extent of the inner of two axes; None where there is one.
    """

    count: int
    inner: int | None
    stride: int
    outer_stride: int

    @property
    def axes(self) -> list[Axis]:
        """Those along which matrices differ, the inner one first."""
        inner = self.inner or self.count
        place = "batch" if self.inner is None else f"batch % {inner}"
        axes = (
            Axis(inner, self.stride, place),
            Axis(self.count // inner, self.outer_stride, f"batch / {inner}"),
        )
        return [axis for axis in axes if axis.extent > 1 and axis.stride]

    @property
    def matrices(self) -> int:
        """Matrices that differ."""
        return math.prod(axis.extent for axis in self.axes)

    @classmethod
    def of(cls, operand: Operand, problem: GemmProblem) -> Batches:
        """Of an operand of a problem."""
        outer, inner = problem.batch_strides(operand)
        return cls(problem.batch, problem.inner_batch, inner, outer)

    def of_copy(self, copy: layout.Matrix) -> Batches:
        """The same axes where a copy has its matrices."""
        return dataclasses.replace(
            self, stride=copy.batch_stride, outer_stride=copy.outer_batch_stride
        )


def are_aligned(dtype: str, strides: Sequence[int]) -> bool:
    """Whether TMA takes strides in elements: multiples of 16 bytes."""
    size = dtypes.size_bytes(dtype)
    return all(stride * size % layout.ALIGNMENT == 0 for stride in strides)


def tensor_map(
    source: Source,
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
    size = dtypes.size_bytes(source.dtype)
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
