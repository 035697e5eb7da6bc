"""Formulas of the kernel's features (`felix.templates.spec`): counts, and the estimated time.

The kernel is bound by memory: its time is that of the launch and of the matrix's bytes at the
bandwidth, as far as the threads of an SM have enough loads under way to hide the latency. The
constants are estimates, not fitted to measurements.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import dtypes
from felix.templates.gemm.gemv import decisions
from felix.templates.gemm.gemv.decisions import Decisions, Value
from felix.templates.gemm.problem import GemmProblem, Operand

Row = dict[str, Value]

#: Share of the bandwidth of the data sheet.
_DRAM_SHARE = 0.88
#: Bytes a cycle and SM from L2; float32 operations a cycle and SM.
_L2_BYTES, _OPERATIONS = 64, 128
_LATENCY_US, _LAUNCH_US, _END_US = 0.9, 4.56, 0.4


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the kernel."""
    f = _launch(problem, d, hardware) | _traffic(problem, d)
    f |= _times(problem, d, f, hardware)
    return {"gemv": {name: sympy.sympify(value) for name, value in f.items()}}


def _launch(problem: GemmProblem, d: Decisions, hardware: Hardware) -> Row:
    blocks = decisions.tiles(problem, d) * problem.batch
    resident = decisions.resident_blocks(problem, d, hardware)
    waves = expr.CeilDiv(blocks, resident * hardware.cores)
    return {
        "grid_blocks": blocks,
        "block_threads": d.threads,
        "cluster_blocks": 1,
        "shared_bytes": decisions.shared_bytes(problem, d),
        "registers": decisions.registers(problem, d),
        "blocks_per_sm": resident,
        "waves": waves,
        "tail": blocks / (waves * resident * hardware.cores),
        "tiles_per_block": 1,
        "problem_ops": 2 * problem.products,
        "tile_rows": problem.m,
        "tile_columns": d.block_columns,
        "sums_per_thread": problem.m * d.columns,
        "tiles_at_once": 1,
        "steps": decisions.steps(problem, d),
        "parts": 1,
        "cluster_parts": 1,
        "group_rows": 1,
        "is_row_major": int(problem.output.strides[2] == 1),
    }


def _traffic(problem: GemmProblem, d: Decisions) -> Row:
    def size(dtype: str) -> int:
        return dtypes.STORAGE[dtype].size_bytes

    def matrix(operand: Operand, lines: int) -> int:
        return lines * problem.k * size(operand.dtype)

    a, b = matrix(problem.a, problem.m), matrix(problem.b, problem.n)
    reads = problem.epilogue.reads
    stored = size(problem.output.dtype) * problem.stored_elements
    unique = problem.matrices(problem.a) * a + problem.matrices(problem.b) * b
    unique += sum(size(read.dtype) * problem.distinct_elements(read) for read in reads)
    return {
        "l2_bytes": problem.batch * (b + a * decisions.tiles(problem, d)),
        "dram_bytes": unique + stored,
        "read_bytes": problem.stored_elements * sum(size(read.dtype) for read in reads),
        "stored_bytes": stored,
    }


def _times(problem: GemmProblem, d: Decisions, f: Row, hardware: Hardware) -> Row:
    cycles = 1000.0 * hardware.clock_ghz
    on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    threads = on_sm * d.threads
    elements = decisions.chunk_elements(problem.b, problem.k)
    loaded = threads * d.unroll * d.columns * decisions.chunk_bytes(problem)
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
        "analytic_us": launch + (mainloop**4 + dram**4) ** sympy.Rational(1, 4),
    }
