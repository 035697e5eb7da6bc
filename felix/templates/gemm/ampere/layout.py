"""Operands in global and shared memory.

A tile of an operand lies in shared memory as lines of whole chunks of 16 bytes. Lines are rows of
the tile where the operand is contiguous along k, else they are values of k. Chunk c of line l
lies at chunk c ^ (l / period % group) of its line: eight lines' chunks of one number, which
ldmatrix reads together, then lie in different banks.
"""

from __future__ import annotations

import dataclasses
import math

from felix.templates.gemm.ampere import dtypes, gather
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
        problem: whose operand it is.
    """

    operand: Operand
    rows: int
    problem: GemmProblem

    @property
    def k(self) -> int:
        """Length of the sum, of the longest if they differ."""
        return self.problem.k

    @property
    def batch_strides(self) -> tuple[int, int]:
        """Of the outer and the inner batch axis; 0 where one matrix serves all."""
        return self.problem.batch_strides(self.operand)

    @property
    def element_bytes(self) -> int:
        return dtypes.STORAGE[self.operand.dtype].size_bytes

    @property
    def is_along_k(self) -> bool:
        """Whether elements that follow in k are neighbours in memory, in pieces if gathered."""
        return self.operand.gather is not None or self.operand.strides[2] == 1 or self.k == 1

    @property
    def elements(self) -> int:
        """That the products have, of all matrices; those outside of gathered data left out."""
        of = self.operand.gather
        if of is None:
            lengths = self.problem.lengths
            return self.rows * sum(length * count for length, count in lengths.items())
        phases = self.problem.phases
        count = phases.count if phases else 1
        return self.problem.batch // count * gather.inside_elements(of, phases)

    @property
    def distinct_elements(self) -> int:
        """Of all matrices, each counted once."""
        of, matrices = self.operand.gather, self.problem.matrices(self.operand)
        if of is not None:
            return matrices * gather.distinct_elements(of, self.problem.phases)
        is_of_phases = self.problem.phases is not None and self.operand.outer_stride
        return self.elements if is_of_phases else matrices * self.rows * self.k

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
        if self.operand.gather:
            return gather.copy_bytes(self.operand, self.operand.gather, self.batch_strides)
        lines = self.rows if self.is_along_k else self.k
        strides = [*self.batch_strides, self.line_stride if lines > 1 else 0, self.operand.offset]
        for size in _COPIES:
            if all(stride * self.element_bytes % size == 0 for stride in strides):
                return size
        return None


def matrices(problem: GemmProblem) -> tuple[Matrix, Matrix]:
    """A and B."""
    return Matrix(problem.a, problem.m, problem), Matrix(problem.b, problem.n, problem)
