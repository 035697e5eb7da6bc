"""The parameters of the template, and what follows from them.

Everything here is the same function of integers (for generating source) and of sympy
expressions (for constraints and features), so the two cannot differ.

Notation
    rows     of A, few; columns are lines of B, whose elements are adjacent along k
    chunk    neighbours of a line that a thread loads at once, 16 bytes where they are aligned
    group    `lanes` threads of a warp that sum `columns` columns together
    block    warps_n x warps_k warps: warps_n of them side by side, each over a part of the sum
    step     the chunks that a thread loads before it multiplies: `unroll` of each of its columns
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates import decisions
from felix.templates.gemm.ampere import dtypes
from felix.templates.gemm.problem import GemmProblem, Operand
from felix.templates.template import Parameter

#: An integer, or a sympy expression of one.
Value = Any

#: More rows are faster on tensor cores, and their sums do not fit registers.
MOST_ROWS = 8
WARP = 32
CHUNK_BYTES = 16
_SUM_BYTES = 4
_MOST_REGISTERS = 255
#: Registers of a thread beside sums and what it loads.
_OTHER_REGISTERS = 32
_REGISTER_BYTES = 4
#: Shared bytes of each resident block that the system takes.
_SYSTEM_BYTES = 1024
_MOST_BLOCKS = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions(decisions.Decisions):
    """Values of the parameters; `parameters` has their meaning."""

    lanes: Value
    columns: Value
    warps_n: Value
    warps_k: Value
    unroll: Value

    @property
    def threads(self) -> Value:
        """Of a block."""
        return WARP * self.warps_n * self.warps_k

    @property
    def warp_columns(self) -> Value:
        return expr.FloorDiv(WARP, self.lanes) * self.columns

    @property
    def block_columns(self) -> Value:
        return self.warp_columns * self.warps_n

    @property
    def lanes_k(self) -> Value:
        """Threads of a block that share a sum."""
        return self.lanes * self.warps_k


def parameters(problem: GemmProblem) -> list[Parameter]:
    """The parameters for a problem; what cannot help it is left out of their domains."""
    n_chunks = chunks(problem)

    def useful(values: tuple[int, ...], most: int) -> tuple[int, ...]:
        return tuple(value for value in values if value == values[0] or value < 2 * most)

    return [
        Parameter("lanes", useful((4, 8, 16, 32), n_chunks), True, "threads along k in a warp"),
        Parameter("columns", useful((1, 2, 4, 8), problem.n), True, "columns of a thread"),
        Parameter("warps_n", useful((1, 2, 4, 8), problem.n), True, "warps along columns"),
        Parameter("warps_k", useful((1, 2, 4, 8, 16), n_chunks), True, "warps along k"),
        Parameter("unroll", useful((1, 2, 4, 8), n_chunks), True, "loads of a column at once"),
    ]


def chunk_elements(operand: Operand, k: int) -> int:
    """Elements of a line that are loaded at once: aligned in every line and matrix.

    Args:
        operand: contiguous along k, or 1 is the answer.
        k: length of the lines; whole chunks of it.
    """
    batch, line, along_k = operand.strides
    if along_k != 1 and k > 1:
        return 1
    most = CHUNK_BYTES // dtypes.STORAGE[operand.dtype].size_bytes
    return math.gcd(most, k, batch, line, operand.outer_stride, operand.offset)


def chunks(problem: GemmProblem) -> int:
    """Of a line of B."""
    return problem.k // chunk_elements(problem.b, problem.k)


def chunk_bytes(problem: GemmProblem) -> int:
    """Of a chunk of B."""
    elements = chunk_elements(problem.b, problem.k)
    return elements * dtypes.STORAGE[problem.b.dtype].size_bytes


def tiles(problem: GemmProblem, d: Decisions) -> Value:
    """Blocks of one matrix of C."""
    return expr.CeilDiv(problem.n, d.block_columns)


def steps(problem: GemmProblem, d: Decisions) -> Value:
    """Of a thread, those that have most."""
    return expr.CeilDiv(chunks(problem), d.lanes_k * d.unroll)


def shared_bytes(problem: GemmProblem, d: Decisions) -> Value:
    """Of a block: the sums of each part."""
    return _SUM_BYTES * problem.m * d.block_columns * d.warps_k


def registers(problem: GemmProblem, d: Decisions) -> Value:
    """Of a thread, by estimate: sums, chunks of B in flight, chunks of A, and the rest."""
    of_chunk = -(-chunk_bytes(problem) // _REGISTER_BYTES)
    elements = chunk_elements(problem.b, problem.k)
    sums = problem.m * d.columns
    return sums + of_chunk * d.columns * d.unroll + 2 * elements + _OTHER_REGISTERS


def resident_blocks(problem: GemmProblem, d: Decisions, hardware: Hardware) -> Value:
    """Of a multiprocessor, by its limits; at least 1."""
    of_block = 8 * expr.CeilDiv(registers(problem, d), 8) * d.threads
    by_registers = expr.FloorDiv(hardware.registers_per_core, of_block)
    by_threads = expr.FloorDiv(hardware.max_threads_per_core, d.threads)
    used = shared_bytes(problem, d) + _SYSTEM_BYTES
    by_shared = expr.FloorDiv(hardware.shared_bytes_per_core, used)
    by_blocks = expr.Minimum(by_threads, hardware.max_blocks_per_core)
    return expr.Maximum(1, expr.Minimum(by_registers, expr.Minimum(by_shared, by_blocks)))


def constraints(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> list[tuple[str, sympy.Expr]]:
    """What is limited, by name; legal where <= 0."""
    used = registers(problem, d)
    return [
        ("registers of a thread", used - _MOST_REGISTERS),
        ("registers of a block", used * d.threads - hardware.registers_per_block),
        ("threads of a block", d.threads - hardware.max_threads_per_block),
        ("shared memory of a block", shared_bytes(problem, d) - hardware.shared_bytes_per_block),
        ("blocks", tiles(problem, d) * problem.batch - _MOST_BLOCKS),
    ]
