"""Operands in global and shared memory.

A tile of an operand lies in shared memory as block_k lines, each the tile's rows (of A; columns
of B) at one value of k, so that a thread loads neighbours of a line as vectors. An operand that
is contiguous along rows is copied in pieces of 4 to 16 bytes. One that is contiguous along k is
transposed by copying single elements: 32 threads copy 8 values of k of 4 rows, which are whole
sectors of 32 bytes. Their lines are an odd number of 16 bytes apart, so that the 32 elements lie
in different banks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from felix.symbolic import expr
from felix.templates.gemm.ampere import layout
from felix.templates.gemm.ampere.layout import Matrix
from felix.templates.gemm.problem import GemmProblem

#: An integer, or a sympy expression of one.
Value = Any

FLOAT_BYTES = 4
#: Elements of a vector of 16 bytes.
VECTOR = 4
#: Rows and values of k that a warp copies at once of an operand that is contiguous along k.
WARP_ROWS, WARP_K = 4, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Where the threads of a block copy: side by side along rows and k, each at the same places
    from its first one.

    Attributes:
        rows: threads side by side along rows, each with the elements of one copy.
        k: threads side by side along k.
    """

    rows: int
    k: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """How tiles of an operand are copied."""

    matrix: Matrix

    @property
    def is_transposed(self) -> bool:
        """Whether the operand is contiguous along k."""
        return self.matrix.is_along_k

    @property
    def width(self) -> int:
        """Elements of a copy."""
        if self.is_transposed:
            return 1
        assert self.matrix.copy_bytes is not None
        return self.matrix.copy_bytes // FLOAT_BYTES

    def pitch(self, rows: Value) -> Value:
        """Elements from one line to the next of a tile of so many rows."""
        vectors = expr.CeilDiv(rows, VECTOR)
        if self.is_transposed:
            vectors = 2 * expr.FloorDiv(vectors, 2) + 1
        return VECTOR * vectors

    def copies(self, rows: Value, block_k: Value) -> Value:
        """Copies that fill a tile."""
        return expr.CeilDiv(rows, self.width) * block_k

    def spread(self, rows: int, block_k: int, threads: int) -> Spread:
        """Of the block's threads, a power of two."""
        if self.is_transposed:
            along_k = WARP_K * min(threads // (WARP_ROWS * WARP_K), block_k // WARP_K)
            return Spread(threads // along_k, along_k)
        along_rows = math.gcd(-(-rows // self.width), threads)
        return Spread(along_rows, threads // along_rows)


def tiles(problem: GemmProblem) -> tuple[Tile, Tile]:
    """Of A and B."""
    a, b = layout.matrices(problem)
    return Tile(a), Tile(b)
