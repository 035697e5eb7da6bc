"""Operands in global and shared memory.

A tile of an operand lies in shared memory as lines of whole chunks of 16 bytes. Lines are rows of
the tile where the operand is contiguous along k, else they are values of k. Chunk c of line l
lies at chunk c ^ (l / period % group) of its line: eight lines' chunks of one number, which
ldmatrix reads together, then lie in different banks.
"""

from __future__ import annotations

import dataclasses
import math

from felix.templates.gemm.ampere import dtypes
from felix.templates.gemm.problem import GemmProblem, Operand

CHUNK_BYTES = 16
#: Chunks of 128 bytes: all banks.
_BANK_CHUNKS = 8
#: Bytes that one cp.async may copy, the best first.
_COPIES = (16, 8, 4)


@dataclasses.dataclass(frozen=True, slots=True)
class Swizzle:
    """How chunks are permuted in lines of `chunks`."""

    chunks: int

    @property
    def group(self) -> int:
        return math.gcd(self.chunks, _BANK_CHUNKS)

    @property
    def period(self) -> int:
        return _BANK_CHUNKS // self.group

    def position(self, line: int, chunk: int) -> int:
        """Where a chunk lies, in chunks from the tile's beginning."""
        return line * self.chunks + (chunk ^ (line // self.period % self.group))


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """An operand in global memory.

    Attributes:
        operand: its parameter, dtype and strides.
        rows: of A, or columns of B.
        k: length of the sum.
        batch_strides: of the outer and the inner batch axis; 0 where one matrix serves all.
    """

    operand: Operand
    rows: int
    k: int
    batch_strides: tuple[int, int]

    @property
    def element_bytes(self) -> int:
        return dtypes.STORAGE[self.operand.dtype].size_bytes

    @property
    def is_along_k(self) -> bool:
        """Whether elements that follow in k are neighbours in memory."""
        return self.operand.strides[2] == 1 or self.k == 1

    def swizzle(self, block: int, block_k: int) -> Swizzle:
        """Of a tile of `block` rows and `block_k` of k."""
        line_bytes = (block_k if self.is_along_k else block) * self.element_bytes
        return Swizzle(line_bytes // CHUNK_BYTES)

    @property
    def line_stride(self) -> int:
        """Elements from one line to the next."""
        _, row, k = self.operand.strides
        return row if self.is_along_k else k

    @property
    def copy_bytes(self) -> int | None:
        """Bytes that one cp.async copies; None where lines are not aligned enough for any.

        Tensors themselves begin at multiples of 256 bytes.
        """
        lines = self.rows if self.is_along_k else self.k
        strides = [*self.batch_strides, self.line_stride if lines > 1 else 0, self.operand.offset]
        for size in _COPIES:
            if all(stride * self.element_bytes % size == 0 for stride in strides):
                return size
        return None


def matrices(problem: GemmProblem) -> tuple[Matrix, Matrix]:
    """A and B."""
    return (
        Matrix(problem.a, problem.m, problem.k, problem.batch_strides(problem.a)),
        Matrix(problem.b, problem.n, problem.k, problem.batch_strides(problem.b)),
    )
