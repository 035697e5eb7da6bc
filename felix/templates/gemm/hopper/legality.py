"""Which decisions a kernel can be made of, and which make one that no others make.

Each constraint is legal where its expression is <= 0. Conditions are 0 or 1, so a condition that
must not hold is a constraint itself.
"""

from __future__ import annotations

import dataclasses

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.hopper import decisions, design, dtypes
from felix.templates.gemm.hopper.decisions import Decisions, Value
from felix.templates.gemm.problem import GemmProblem

#: Registers of a thread that one wgmma needs beside its sums, or ptxas refuses the kernel.
_WGMMA_REGISTERS = 26
#: Shared memory that CUDA takes for each block.
_RESERVED_SHARED_BYTES = 1024
#: Blocks of a cluster that every GPU with clusters can run.
_LARGEST_CLUSTER = 8

Constraint = tuple[str, sympy.Expr]


def constraints(problem: GemmProblem, d: Decisions, hardware: Hardware) -> list[Constraint]:
    """All constraints of a problem's decisions."""
    return [
        *_tiles(problem, d),
        *_resources(problem, d, hardware),
        *_clusters(problem, d),
        *_without_effect(problem, d, hardware),
    ]


def _tiles(problem: GemmProblem, d: Decisions) -> list[Constraint]:
    subtile = decisions.WGMMA_ROWS * d.warpgroups_per_tile
    result = [
        ("rows of a tile per warpgroup", expr.FloorMod(d.block_m, subtile)),
        ("warpgroups of two tiles", _all(_more(d.tiles_at_once), _differ(d.consumers, 2))),
    ]
    if not design.is_copied_by_tma(problem):
        is_final = expr.Equal(d.split_k, 1)
        result.append(("output that TMA can store", _all(_more(d.tma_store), is_final)))
    return result


def _resources(problem: GemmProblem, d: Decisions, hardware: Hardware) -> list[Constraint]:
    registers = decisions.registers(d, hardware.registers_per_core)
    consumer = d.accumulators + decisions.OVERHEAD_REGISTERS
    instruction = expr.FloorDiv(d.block_n, 2) + _WGMMA_REGISTERS
    total = decisions.shared(problem, d).total
    on_sm = (total + _RESERVED_SHARED_BYTES) * d.blocks_per_sm
    return [
        ("registers of sums", consumer - registers.consumer),
        ("registers of an instruction", instruction - registers.launch),
        ("shared memory of a block", total - hardware.shared_bytes_per_block),
        ("shared memory of an SM", on_sm - hardware.shared_bytes_per_core),
    ]


def _clusters(problem: GemmProblem, d: Decisions) -> list[Constraint]:
    a, b = design.sources(problem)
    result = [("blocks of a cluster", d.cluster_blocks - _LARGEST_CLUSTER)]
    # A share of a tile is a whole number of the swizzle's atoms.
    rows_a = d.block_m if a.is_k_major else d.block_k
    rows_b = d.block_n if b.is_k_major else d.block_k
    result += [
        ("shares of a tile of A", expr.FloorMod(rows_a, 8 * d.cluster_n)),
        ("shares of a tile of B", expr.FloorMod(rows_b, 8 * d.cluster_m)),
    ]
    others = (d.cluster_m, d.cluster_n, d.split_k, d.persistent, d.tma_store, d.tiles_at_once)
    for name, value in zip(
        ("cluster_m", "cluster_n", "split_k", "persistent", "tma_store", "tiles_at_once"),
        others,
        strict=True,
    ):
        result.append((f"cluster_k with {name}", _all(_more(d.cluster_k), _more(value))))
    size = dtypes.size_bytes(problem.accumulator)
    missing = d.block_m * d.block_n * size - decisions.shared(problem, d).ring
    result.append(("sums of a block in its ring", expr.Select(_more(d.cluster_k), missing, 0)))
    return result


def _without_effect(problem: GemmProblem, d: Decisions, hardware: Hardware) -> list[Constraint]:
    """Against kernels that are the same as others, or idle by design."""
    one_tile_each = dataclasses.replace(d, persistent=1)
    most = decisions.grid(problem, one_tile_each, hardware.cores)
    launched = decisions.grid(problem, d, hardware.cores)
    units_m = expr.FloorDiv(most.tiles_m, d.cluster_m)
    return [
        ("parts of the sum", d.parts - most.steps),
        (
            "blocks that stay",
            _all(_more(d.persistent), expr.Equal(launched.clusters, most.clusters)),
        ),
        ("rows of tiles in a group", d.group_m - units_m),
        ("rows of a cluster", (d.cluster_m - 1) * d.block_m - problem.m + 1),
        ("columns of a cluster", (d.cluster_n - 1) * d.block_n - problem.n + 1),
        ("two tiles of a block", _all(_more(d.tiles_at_once), expr.Equal(most.units, 1))),
    ]


def _more(value: Value) -> sympy.Expr:
    return expr.Less(1, value)


def _differ(a: Value, b: Value) -> sympy.Expr:
    return expr.Not(expr.Equal(a, b))


def _all(*conditions: sympy.Expr) -> sympy.Expr:
    value = conditions[0]
    for condition in conditions[1:]:
        value = expr.And(value, condition)
    return value
