"""Products in float32 by fused multiply-adds of threads, without tensor cores: parameters, tiles
in shared memory, and features. `simt_program` has their text.

A tile of an operand lies in shared memory as block_k lines, each the tile's rows (of A; columns
of B) at one value of k, so that a thread loads neighbours of a line as vectors. An operand that
is contiguous along rows is copied in pieces of 4 to 16 bytes. One that is contiguous along k is
transposed by copying single elements: 32 threads copy 8 values of k of 4 rows, which are whole
sectors of 32 bytes. Their lines are an odd number of 16 bytes apart, so that the 32 elements lie
in different banks.

A step takes as long as the slowest of what the blocks of an SM need: multiply-adds, slots of the
schedulers, shared memory, their share of L2, or the latency of a copy. Rates of multiply-adds are
those of data sheets; the other constants are estimates, not fitted to measurements.

Notation, beside that of `decisions`
    thread tile  thread_m x thread_n of C that a thread computes, in pieces of neighbours
    warp tile    lanes_m x lanes_n thread tiles, whose pieces alternate
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import decisions, features, layout, packing
from felix.templates.gemm.ampere.decisions import WARP, Grid, Limits, Staged, Value
from felix.templates.gemm.ampere.features import Row
from felix.templates.gemm.ampere.layout import Matrix
from felix.templates.gemm.problem import GemmProblem
from felix.templates.template import Parameter

_FLOAT_BYTES = 4
#: Elements of a vector of 16 bytes.
_VECTOR = 4
#: Rows and values of k that a warp copies at once of an operand that is contiguous along k.
WARP_ROWS, WARP_K = 4, 8
_MOST_SUMS = 128
#: Registers of a thread beside sums and fragments; and of one that has few of these.
_OTHER_REGISTERS, _LEAST_REGISTERS = 32, 72
#: Copies of a thread in one step, which is unrolled.
_MOST_COPIES = 72
#: Rows and columns of the smallest tile of a warp of usual threads.
_LEAST_SIZE = 4
#: Extents of C up to which threads and warps narrower than the usual ones can help.
_FEW = 32
#: Values of k of a step.
_BLOCK_KS = (8, 16, 32)

#: Bytes that threads load from shared memory in a cycle of an SM, half of them twice.
_LOADED_BYTES = 256
#: Copies to shared memory in a cycle of an SM, of any size.
_COPIES = 8
#: Instructions of a thread beside each copy, and beside those of a step.
_COPY_INSTRUCTIONS, _STEP_INSTRUCTIONS = 2, 30
#: Share of a scheduler's time that one warp alone leaves unused.
_ALONE = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions(Staged):
    """Values of the parameters; `parameters` has their meaning."""

    thread_m: Value
    thread_n: Value
    lanes_m: Value

    @property
    def lanes_n(self) -> Value:
        return expr.FloorDiv(WARP, self.lanes_m)

    @property
    def block_m(self) -> Value:
        return self.thread_m * self.lanes_m * self.warps_m

    @property
    def block_n(self) -> Value:
        return self.thread_n * self.lanes_n * self.warps_n

    @property
    def sums(self) -> Value:
        return self.thread_m * self.thread_n

    def registers(self, problem: GemmProblem) -> Value:
        """Sums, two sets of fragments, and the rest."""
        used = self.sums + 2 * (self.thread_m + self.thread_n) + _OTHER_REGISTERS
        return expr.Maximum(_LEAST_REGISTERS, used)

    def shared_bytes(self, problem: GemmProblem) -> Value:
        """The stages."""
        return self.stages * self.stage_bytes(problem)

    def stage_bytes(self, problem: GemmProblem) -> Value:
        """Of a stage: tiles of A and B."""
        a, b = tiles(problem)
        return _FLOAT_BYTES * self.block_k * (a.pitch(self.block_m) + b.pitch(self.block_n))

    def copies(self, problem: GemmProblem) -> Value:
        """Of a thread in a step, about: whole rounds of all threads for each operand."""
        a, b = tiles(problem)
        of_a, of_b = a.copies(self.block_m, self.block_k), b.copies(self.block_n, self.block_k)
        return expr.CeilDiv(of_a, self.threads) + expr.CeilDiv(of_b, self.threads)

    def surplus_copies(self, problem: GemmProblem) -> Value:
        return self.copies(problem) - _MOST_COPIES


def parameters(problem: GemmProblem) -> list[Parameter]:
    """The parameters for a problem; what cannot help it is left out of their domains."""
    return [
        Parameter("thread_m", _rows(problem.m), True, "rows of a thread"),
        Parameter("thread_n", (4, 8, 12, 16), True, "columns of a thread"),
        Parameter("lanes_m", _lanes(problem), True, "threads of a warp along rows"),
        *decisions.common_parameters(problem, _BLOCK_KS, _LEAST_SIZE),
    ]


def _rows(extent: int) -> tuple[int, ...]:
    """Rows of a thread: one and two where there are few, and not twice as many as there are."""
    sizes = (1, 2, 4, 8) if extent <= _FEW else (4, 8, 12, 16)
    return tuple(size for size in sizes if size == sizes[0] or size < 2 * extent)


def _lanes(problem: GemmProblem) -> tuple[int, ...]:
    """Threads of a warp along rows: squarest, or narrow where there are few rows or columns."""
    if problem.m == 1:
        return (1,)
    few_rows = (1, 2) if problem.m <= _FEW else ()
    few_columns = (16,) if problem.n <= _FEW else ()
    return (*few_rows, 4, 8, *few_columns)


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
        return self.matrix.copy_bytes // _FLOAT_BYTES

    def pitch(self, rows: Value) -> Value:
        """Elements from one line to the next of a tile of so many rows."""
        vectors = expr.CeilDiv(rows, _VECTOR)
        if self.is_transposed:
            vectors = 2 * expr.FloorDiv(vectors, 2) + 1
        return _VECTOR * vectors

    def copies(self, rows: Value, block_k: Value) -> Value:
        """Copies that fill a tile."""
        return expr.CeilDiv(rows, self.width) * block_k

    def spread(self, rows: int, block_k: int, threads: int) -> tuple[int, int]:
        """Threads of a block that copy side by side along rows, and along k.

        They are a power of two; each goes on to the same places from its first one.
        """
        if self.is_transposed:
            along_k = WARP_K * min(threads // (WARP_ROWS * WARP_K), block_k // WARP_K)
            return threads // along_k, along_k
        along_rows = math.gcd(-(-rows // self.width), threads)
        return along_rows, threads // along_rows


def tiles(problem: GemmProblem) -> tuple[Tile, Tile]:
    """Of A and B."""
    a, b = layout.matrices(problem)
    return Tile(a), Tile(b)


def constraints(
    problem: GemmProblem, d: Decisions, limits: Limits
) -> list[tuple[str, sympy.Expr]]:
    """What is limited, by name; legal where <= 0."""
    return [("sums of a thread", d.sums - _MOST_SUMS), *decisions.constraints(problem, d, limits)]


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the product's kernel, and of the one that adds partial sums.

    No instruction is one of tensor cores, so those columns are 0. `shared_traffic` counts what
    threads load, each for itself.
    """
    return features.staged_rows(packing.Packed(problem), d, hardware, _tiles, _times)


def _tiles(problem: GemmProblem, d: Decisions, work: Grid, f: Row) -> Row:
    """Tiles, their copies and loads."""
    a, b = tiles(problem)
    of_a, of_b = a.copies(d.block_m, d.block_k), b.copies(d.block_n, d.block_k)
    copied = work.tile_steps * (_FLOAT_BYTES * (a.width * of_a + b.width * of_b))
    # Each thread loads its rows and columns, and once more ahead of its last step's end.
    lines = work.tile_steps * d.block_k + work.blocks
    loaded = _FLOAT_BYTES * lines * d.threads * (d.thread_m + d.thread_n)
    stage_bytes = d.stage_bytes(problem)
    return features.ring(problem, d, work, f, stage_bytes, of_a + of_b) | {
        "copied_bytes": copied,
        "shared_traffic": copied + loaded,
    }


def _times(problem: GemmProblem, d: Decisions, work: Grid, f: Row, hardware: Hardware) -> Row:
    at_once = f["blocks_per_sm"] * hardware.cores
    whole_waves = expr.FloorDiv(work.blocks, at_once)
    rest = expr.CeilDiv(work.blocks - whole_waves * at_once, hardware.cores)
    of_whole, of_rest = (
        _step(problem, d, work, f, n, hardware) for n in (f["blocks_per_sm"], rest)
    )
    mainloop = f["steps"] * (whole_waves * of_whole + expr.Select(expr.Less(0, rest), of_rest, 0))
    return {
        "step_us": expr.Select(expr.Less(0, whole_waves), of_whole, of_rest),
        **features.times(f, hardware, _LOADED_BYTES, mainloop),
    }


def _step(
    problem: GemmProblem, d: Decisions, work: Grid, f: Row, on_sm: Value, hardware: Hardware
) -> Value:
    """A step of each of the `on_sm` blocks of an SM, in us."""
    cycles = 1000.0 * hardware.clock_ghz
    lanes = hardware.peak_fp32_gflops / (2 * hardware.clock_ghz * hardware.cores)
    warps = expr.Maximum(1, on_sm * d.warps)
    idle = features.SCHEDULERS / expr.Minimum(features.SCHEDULERS, warps)
    multiplying = d.block_k * d.block_m * d.block_n / lanes
    copies = d.copies(problem)
    vectors = expr.CeilDiv(d.thread_m, _VECTOR) + expr.CeilDiv(d.thread_n, _VECTOR)
    of_warp = d.block_k * (d.sums + vectors) + _COPY_INSTRUCTIONS * copies + _STEP_INSTRUCTIONS
    issuing = of_warp * d.warps / features.SCHEDULERS
    loaded = _FLOAT_BYTES * d.block_k * d.threads * (d.thread_m + d.thread_n)
    in_shared = loaded / _LOADED_BYTES + copies * d.threads / _COPIES
    from_l2 = f["copied_bytes"] / work.tile_steps / features.L2_BYTES
    computing = idle * expr.Maximum(multiplying, issuing)
    slowest = expr.Maximum(computing, expr.Maximum(in_shared, from_l2))
    alone = 1 + _ALONE * features.SCHEDULERS / expr.Maximum(features.SCHEDULERS, warps)
    busy = on_sm * slowest * alone / cycles + features.BARRIER_US
    return expr.Maximum(busy, (features.COPY_LATENCY_US + busy) / d.stages)
