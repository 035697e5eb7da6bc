"""The parameters of the template, what follows from them, and its features.

Notation
    rows     of A, few; columns are lines of B, whose elements are adjacent along k
    chunk    neighbours of a line that a thread loads at once, 16 bytes where they are aligned
    group    `lanes` threads of a warp that sum `columns` columns together
    block    warps_n x warps_k warps: warps_n of them side by side, each over a part of the sum
    step     the chunks that a thread loads before it multiplies: `unroll` of each of its columns

The kernel is bound by memory: its time is that of the launch and of the matrix's bytes at the
bandwidth, as far as the threads of an SM have enough loads under way to hide the latency. The
constants are estimates, not fitted to measurements.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates import template
from felix.templates.gemm.ampere import features
from felix.templates.gemm.ampere.decisions import MOST_BLOCKS, MOST_REGISTERS, WARP, Value
from felix.templates.gemm.ampere.features import Row
from felix.templates.gemm.problem import GemmProblem, Operand
from felix.templates.template import Parameter

#: More rows are faster on tensor cores, and their sums do not fit registers.
MOST_ROWS = 8
CHUNK_BYTES = 16
_SUM_BYTES = 4
#: Registers of a thread beside sums and what it loads.
_OTHER_REGISTERS = 32
_REGISTER_BYTES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions(template.Decisions):
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
    most = CHUNK_BYTES // operand.element_bytes
    return math.gcd(most, k, batch, line, operand.outer_stride, operand.offset)


def chunks(problem: GemmProblem) -> int:
    """Of a line of B."""
    return problem.k // chunk_elements(problem.b, problem.k)


def chunk_bytes(problem: GemmProblem) -> int:
    """Of a chunk of B."""
    elements = chunk_elements(problem.b, problem.k)
    return elements * problem.b.element_bytes


def tiles(problem: GemmProblem, d: Decisions) -> Value:
    """Blocks of one matrix of C."""
    return expr.CeilDiv(problem.n, d.block_columns)


def steps(problem: GemmProblem, d: Decisions) -> Value:
    """Of a thread, those that have most."""
    return expr.CeilDiv(chunks(problem), d.lanes * d.warps_k * d.unroll)


def shared_bytes(problem: GemmProblem, d: Decisions) -> Value:
    """Of a block: the sums of each part."""
    return _SUM_BYTES * problem.m * d.block_columns * d.warps_k


def registers(problem: GemmProblem, d: Decisions) -> Value:
    """Of a thread, by estimate: sums, chunks of B in flight, chunks of A, and the rest."""
    of_chunk = -(-chunk_bytes(problem) // _REGISTER_BYTES)
    elements = chunk_elements(problem.b, problem.k)
    sums = problem.m * d.columns
    return sums + of_chunk * d.columns * d.unroll + 2 * elements + _OTHER_REGISTERS


def constraints(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> list[tuple[str, sympy.Expr]]:
    """What is limited, by name; legal where <= 0."""
    used = registers(problem, d)
    return [
        ("registers of a thread", used - MOST_REGISTERS),
        ("registers of a block", used * d.threads - hardware.registers_per_block),
        ("threads of a block", d.threads - hardware.max_threads_per_block),
        ("shared memory of a block", shared_bytes(problem, d) - hardware.shared_bytes_per_block),
        ("blocks", tiles(problem, d) * problem.batch - MOST_BLOCKS),
    ]


#: Share of the bandwidth of the data sheet.
_DRAM_SHARE = 0.88
#: Bytes a cycle and SM from L2; float32 operations a cycle and SM.
_L2_BYTES, _OPERATIONS = 64, 128
_LATENCY_US, _LAUNCH_US, _END_US = 0.9, 4.56, 0.4


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the kernel."""
    blocks = tiles(problem, d) * problem.batch
    used, shared = registers(problem, d), shared_bytes(problem, d)
    f = features.launch(blocks, d.threads, used, shared, hardware) | _tiles(problem, d)
    f |= _traffic(problem, d)
    f |= _times(problem, d, f, hardware)
    return features.by_kernel({"gemv": f})


def _tiles(problem: GemmProblem, d: Decisions) -> Row:
    return {
        "problem_ops": 2 * problem.products,
        "tile_rows": problem.m,
        "tile_columns": d.block_columns,
        "sums_per_thread": problem.m * d.columns,
        "tiles_at_once": 1,
        "steps": steps(problem, d),
        **features.choices(problem, 1, 1),
    }


def _traffic(problem: GemmProblem, d: Decisions) -> Row:
    def matrix(operand: Operand, lines: int) -> int:
        return lines * problem.k * operand.element_bytes

    a, b = matrix(problem.a, problem.m), matrix(problem.b, problem.n)
    unique = problem.matrices(problem.a) * a + problem.matrices(problem.b) * b
    return {
        "l2_bytes": problem.batch * (b + a * tiles(problem, d)),
        "dram_bytes": unique + problem.unique_read_bytes + problem.output_bytes,
        "read_bytes": problem.read_bytes,
        "stored_bytes": problem.output_bytes,
    }


def _times(problem: GemmProblem, d: Decisions, f: Row, hardware: Hardware) -> Row:
    cycles = 1000.0 * hardware.clock_ghz
    on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    threads = on_sm * d.threads
    elements = chunk_elements(problem.b, problem.k)
    loaded = threads * d.unroll * d.columns * chunk_bytes(problem)
    # A multiply-add for each row; widening of an element of B, and of A for all columns.
    operations = threads * d.unroll * elements
    operations *= d.columns * (problem.m + 1) + 2 * problem.m
    step = _LATENCY_US + expr.Maximum(
        loaded / (_L2_BYTES * cycles), operations / (_OPERATIONS * cycles)
    )
    mainloop = f["waves"] * f["steps"] * step
    dram = f["dram_bytes"] / (1000.0 * hardware.dram_bandwidth_gbs * _DRAM_SHARE)
    launch = _LAUNCH_US + _END_US
    l2 = _L2_BYTES * cycles * hardware.cores
    return {
        "l2_us": (f["l2_bytes"] + f["stored_bytes"]) / l2,
        "dram_us": dram,
        "step_us": step,
        "mainloop_us": mainloop,
        "launch_us": launch,
        "analytic_us": launch + features.together(mainloop, dram),
    }
