"""The parameters of products by mma.sync, and what follows from them: tiles, threads, registers;
and what they have in common with those of products by threads (`simt`).

Notation
    warp tile   warp_m x warp_n of C that a warp computes
    tile        block_m x block_n of C that a block computes, warps_m x warps_n warp tiles
    step        block_k of k: what one stage of shared memory holds
    part        of the sum over k: split_k parts, each of whole steps
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.template import Parameter

#: An integer, or a sympy expression of one.
Value = Any

#: Rows and columns of C that one mma.sync computes; columns are loaded for two at a time.
MMA_M, MMA_N = 16, 8
WARP = 32
_LEAST_SIZE = 16
MOST_REGISTERS = 255
#: Registers of a thread beside accumulators, fragments and copies.
_OTHER_REGISTERS = 24
#: Of each copy that a thread makes in a step: its address, and how much of it is inside.
_COPY_REGISTERS = 6
#: Shared bytes of each resident block that the system takes.
SYSTEM_BYTES = 1024
MOST_BLOCKS = 2**31 - 1
#: Copies of 16 bytes of a thread in one step: more take registers and time to compile.
_MOST_COPIES = 16
_MAX_SPLIT = 64
_SUM_BYTES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Staged(template.Decisions, abc.ABC):
    """Values of the parameters that products by mma.sync and by threads have."""

    warps_m: Value
    warps_n: Value
    block_k: Value
    stages: Value
    split_k: Value
    group_m: Value
    blocks_per_sm: Value

    @property
    @abc.abstractmethod
    def block_m(self) -> Value:
        """Rows of a tile."""

    @property
    @abc.abstractmethod
    def block_n(self) -> Value:
        """Columns of a tile."""

    @property
    @abc.abstractmethod
    def sums(self) -> Value:
        """Registers of a thread that hold them."""

    @abc.abstractmethod
    def registers(self, problem: GemmProblem) -> Value:
        """Of a thread, by estimate."""

    @abc.abstractmethod
    def shared_bytes(self, problem: GemmProblem) -> Value:
        """What a block holds."""

    @abc.abstractmethod
    def surplus_copies(self, problem: GemmProblem) -> Value:
        """Copies of a step beyond those that threads may make."""

    @property
    def warps(self) -> Value:
        """Of a block."""
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> Value:
        """Of a block."""
        return WARP * self.warps


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions(Staged):
    """Values of the parameters; `parameters` has their meaning."""

    warp_m: Value
    warp_n: Value

    @property
    def block_m(self) -> Value:
        return self.warp_m * self.warps_m

    @property
    def block_n(self) -> Value:
        return self.warp_n * self.warps_n

    @property
    def sums(self) -> Value:
        return expr.FloorDiv(self.warp_m * self.warp_n, WARP)

    @property
    def store_pitch(self) -> Value:
        """Sums from one row to the next in shared memory: rows begin in different banks."""
        return self.warp_n + 8

    def shared_bytes(self, problem: GemmProblem) -> Value:
        """Stages of tiles of A and B, later 16 rows of sums of each warp."""
        sums = self.warps * MMA_M * self.store_pitch * _SUM_BYTES
        return expr.Maximum(self.stages * self._stage_bytes(problem), sums)

    def registers(self, problem: GemmProblem) -> Value:
        """Sums, one and a half sets of fragments, copies, and the rest."""
        fragments = expr.FloorDiv(3 * (self.warp_m + self.warp_n), 8)
        copies = expr.CeilDiv(self._stage_chunks(problem), self.threads)
        return self.sums + fragments + _COPY_REGISTERS * copies + _OTHER_REGISTERS

    def surplus_copies(self, problem: GemmProblem) -> Value:
        return self._stage_chunks(problem) - _MOST_COPIES * self.threads

    def _stage_bytes(self, problem: GemmProblem) -> Value:
        element_bytes = problem.a.element_bytes
        return (self.block_m + self.block_n) * self.block_k * element_bytes

    def _stage_chunks(self, problem: GemmProblem) -> Value:
        """Copies of 16 bytes that fill a stage."""
        return expr.FloorDiv(self._stage_bytes(problem), 16)


def parameters(problem: GemmProblem) -> list[Parameter]:
    """The parameters for a problem; what cannot help it is left out of their domains."""
    element_bytes = problem.a.element_bytes
    block_ks = tuple(size // element_bytes for size in (64, 128, 256))
    return [
        Parameter("warp_m", _sizes(problem.m), True, "rows of a warp"),
        Parameter("warp_n", _sizes(problem.n), True, "columns of a warp"),
        *common_parameters(problem, block_ks, _LEAST_SIZE),
    ]


def common_parameters(
    problem: GemmProblem, block_ks: Sequence[int], least_size: int
) -> list[Parameter]:
    """Those of `Staged`, for tiles of warps of `least_size` or more rows and columns."""

    def warps(extent: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of warps along an axis of which the smallest tiles leave none without work."""
        return tuple(n for n in numbers if n == 1 or least_size * (n - 1) < extent)

    most_split = min(_MAX_SPLIT, max(1, problem.k // (2 * block_ks[0])))
    splits = tuple(2**e for e in range(most_split.bit_length()))
    return [
        Parameter("warps_m", warps(problem.m, (1, 2, 4)), True, "warps along rows"),
        Parameter("warps_n", warps(problem.n, (1, 2, 4, 8)), True, "warps along columns"),
        Parameter("block_k", tuple(block_ks), True, "length of a step of k"),
        Parameter("stages", (2, 3, 4, 5, 6), False, "stages in shared memory"),
        Parameter("split_k", splits, True, "parts of the sum over k"),
        Parameter("group_m", (1, 2, 4, 8, 16), True, "rows of tiles that run together"),
        Parameter("blocks_per_sm", (1, 2, 3, 4), False, "blocks of a multiprocessor"),
    ]


def _sizes(extent: int) -> tuple[int, ...]:
    """Extents of a warp tile that are not twice as long as the axis."""
    sizes = (_LEAST_SIZE, 32, 48, 64, 96, 128)
    return tuple(size for size in sizes if size == _LEAST_SIZE or size < 2 * extent)


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The work of the product's launch.

    Attributes:
        tiles_m, tiles_n: tiles that cover C.
        blocks: that are launched; batches and parts counted.
        steps: of the whole sum over k, the longest if they differ.
        part_steps: of one part of it, the last may have fewer.
        tile_steps: of all blocks; parts together have all steps of a tile once.
    """

    tiles_m: Value
    tiles_n: Value
    blocks: Value
    steps: Value
    part_steps: Value
    tile_steps: Value


def grid(problem: GemmProblem, d: Staged) -> Grid:
    """The work of a problem."""
    tiles_m = expr.CeilDiv(problem.m, d.block_m)
    tiles_n = expr.CeilDiv(problem.n, d.block_n)
    steps = expr.CeilDiv(problem.k, d.block_k)
    blocks = tiles_m * tiles_n * problem.batch * d.split_k
    of_matrices = sum(
        count * expr.CeilDiv(length, d.block_k) for length, count in problem.lengths.items()
    )
    part_steps = expr.CeilDiv(steps, d.split_k)
    return Grid(tiles_m, tiles_n, blocks, steps, part_steps, tiles_m * tiles_n * of_matrices)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Of a multiprocessor, and of a block."""

    registers: int
    threads: int
    shared_bytes: int
    block_threads: int
    block_shared_bytes: int

    @classmethod
    def of(cls, hardware: Hardware) -> Limits:
        """Those of a GPU."""
        return cls(
            registers=hardware.registers_per_core,
            threads=hardware.max_threads_per_core,
            shared_bytes=hardware.shared_bytes_per_core,
            block_threads=hardware.max_threads_per_block,
            block_shared_bytes=hardware.shared_bytes_per_block,
        )


def constraints(problem: GemmProblem, d: Staged, limits: Limits) -> list[tuple[str, sympy.Expr]]:
    """What is limited, by name; legal where <= 0."""
    used, shared, work = d.registers(problem), d.shared_bytes(problem), grid(problem, d)
    resident_threads = d.threads * d.blocks_per_sm
    resident_bytes = (shared + SYSTEM_BYTES) * d.blocks_per_sm
    return [
        ("registers of a thread", used - MOST_REGISTERS),
        ("registers of a multiprocessor", used * resident_threads - limits.registers),
        ("threads of a block", d.threads - limits.block_threads),
        ("threads of a multiprocessor", resident_threads - limits.threads),
        ("shared memory of a block", shared - limits.block_shared_bytes),
        ("shared memory of a multiprocessor", resident_bytes - limits.shared_bytes),
        ("copies of a thread", d.surplus_copies(problem)),
        ("parts of the sum", d.split_k - work.steps),
        ("blocks", work.blocks - MOST_BLOCKS),
    ]
