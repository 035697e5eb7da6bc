"""The parameters of the template, and what follows from them: tiles, threads, registers.

Everything here is the same function of integers (for generating source) and of sympy
expressions (for constraints and features), so the two cannot differ.

Notation
    thread tile  thread_m x thread_n of C that a thread computes, in pieces of neighbours
    warp tile    lanes_m x lanes_n thread tiles, whose pieces alternate
    tile         block_m x block_n of C that a block computes, warps_m x warps_n warp tiles
    step         block_k of k: what one stage of shared memory holds
    part         of the sum over k: split_k parts, each of whole steps
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy

from felix.symbolic import expr
from felix.templates import decisions
from felix.templates.gemm.ampere import decisions as ampere
from felix.templates.gemm.ampere.decisions import Grid, Limits
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.simt import layout
from felix.templates.template import Parameter

#: An integer, or a sympy expression of one.
Value = Any

WARP = 32
_MOST_REGISTERS = 255
_MOST_SUMS = 128
#: Registers of a thread beside sums and fragments; and of one that has few of these.
_OTHER_REGISTERS, _LEAST_REGISTERS = 32, 72
_MOST_BLOCKS = 2**31 - 1
#: Copies of a thread in one step, which is unrolled.
_MOST_COPIES = 72
_MAX_SPLIT = 64
#: Extents of C up to which threads and warps narrower than the usual ones can help.
_FEW = 32
#: Values of k of a step.
_BLOCK_KS = (8, 16, 32)


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions(decisions.Decisions):
    """Values of the parameters; `parameters` has their meaning."""

    thread_m: Value
    thread_n: Value
    lanes_m: Value
    warps_m: Value
    warps_n: Value
    block_k: Value
    stages: Value
    split_k: Value
    group_m: Value
    blocks_per_sm: Value

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
    def warps(self) -> Value:
        """Of a block."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> Value:
        """Of a block."""
        return WARP * self.warps

    @property
    def sums(self) -> Value:
        """Registers of a thread that hold them."""
        return self.thread_m * self.thread_n


def parameters(problem: GemmProblem) -> list[Parameter]:
    """The parameters for a problem; what cannot help it is left out of their domains."""
    most_split = min(_MAX_SPLIT, max(1, problem.k // (2 * _BLOCK_KS[0])))
    splits = tuple(2**e for e in range(most_split.bit_length()))
    return [
        Parameter("thread_m", _rows(problem.m), True, "rows of a thread"),
        Parameter("thread_n", (4, 8, 12, 16), True, "columns of a thread"),
        Parameter("lanes_m", _lanes(problem), True, "threads of a warp along rows"),
        Parameter("warps_m", _warps(problem.m, (1, 2, 4)), True, "warps along rows"),
        Parameter("warps_n", _warps(problem.n, (1, 2, 4, 8)), True, "warps along columns"),
        Parameter("block_k", _BLOCK_KS, True, "length of a step of k"),
        Parameter("stages", (2, 3, 4, 5, 6), False, "stages in shared memory"),
        Parameter("split_k", splits, True, "parts of the sum over k"),
        Parameter("group_m", (1, 2, 4, 8, 16), True, "rows of tiles that run together"),
        Parameter("blocks_per_sm", (1, 2, 3, 4), False, "blocks of a multiprocessor"),
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


def _warps(extent: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of warps along an axis of which the usual tiles leave none without work."""
    return tuple(n for n in numbers if n == 1 or 4 * (n - 1) < extent)


def grid(problem: GemmProblem, d: Decisions) -> Grid:
    """The work of a problem."""
    tiles_m = expr.CeilDiv(problem.m, d.block_m)
    tiles_n = expr.CeilDiv(problem.n, d.block_n)
    steps = expr.CeilDiv(problem.k, d.block_k)
    tiles = tiles_m * tiles_n * problem.batch
    return Grid(
        tiles_m, tiles_n, tiles * d.split_k, steps, expr.CeilDiv(steps, d.split_k), tiles * steps
    )


def stage_bytes(problem: GemmProblem, d: Decisions) -> Value:
    """Of a stage: tiles of A and B."""
    a, b = layout.tiles(problem)
    return layout.FLOAT_BYTES * d.block_k * (a.pitch(d.block_m) + b.pitch(d.block_n))


def shared_bytes(problem: GemmProblem, d: Decisions) -> Value:
    """What a block holds: the stages."""
    return d.stages * stage_bytes(problem, d)


def thread_copies(problem: GemmProblem, d: Decisions) -> Value:
    """Copies of a thread in a step, about: whole rounds of all threads for each operand."""
    a, b = layout.tiles(problem)
    of_a, of_b = a.copies(d.block_m, d.block_k), b.copies(d.block_n, d.block_k)
    return expr.CeilDiv(of_a, d.threads) + expr.CeilDiv(of_b, d.threads)


def registers(d: Decisions) -> Value:
    """Of a thread, by estimate: sums, two sets of fragments, and the rest."""
    used = d.sums + 2 * (d.thread_m + d.thread_n) + _OTHER_REGISTERS
    return expr.Maximum(_LEAST_REGISTERS, used)


def constraints(
    problem: GemmProblem, d: Decisions, limits: Limits
) -> list[tuple[str, sympy.Expr]]:
    """What is limited, by name; legal where <= 0."""
    resident_threads = d.threads * d.blocks_per_sm
    used, used_registers = shared_bytes(problem, d), registers(d)
    work = grid(problem, d)
    return [
        ("sums of a thread", d.sums - _MOST_SUMS),
        ("registers of a thread", used_registers - _MOST_REGISTERS),
        ("registers of a multiprocessor", used_registers * resident_threads - limits.registers),
        ("threads of a block", d.threads - limits.block_threads),
        ("threads of a multiprocessor", resident_threads - limits.threads),
        ("shared memory of a block", used - limits.block_shared_bytes),
        (
            "shared memory of a multiprocessor",
            (used + ampere.SYSTEM_BYTES) * d.blocks_per_sm - limits.shared_bytes,
        ),
        ("copies of a thread", thread_copies(problem, d) - _MOST_COPIES),
        ("parts of the sum", d.split_k - work.steps),
        ("blocks", work.blocks - _MOST_BLOCKS),
    ]
