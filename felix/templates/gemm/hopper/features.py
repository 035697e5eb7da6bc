"""Formulas of the kernels' features (`felix.templates.spec`): counts; `times` has the times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import features as ampere
from felix.templates.gemm.hopper import decisions, design, helpers, instructions, layout, times
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.hopper.convolution.operands import Pixels
from felix.templates.gemm.hopper.decisions import Decisions, Value
from felix.templates.gemm.hopper.times import RATES, Rates, Row
from felix.templates.gemm.problem import GemmProblem

#: What ptxas gives a thread beside its sums where registers do not change hands.
_OTHER_REGISTERS = 28


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware, rates: Rates = RATES
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the kernels by name: of packing where needed, product and reduction."""
    packs = helpers.packs(problem)
    result = {"pack": _pack(packs, hardware, rates)} if packs else {}
    result["gemm"] = _product(problem, d, hardware, rates, is_first=not result)
    result["reduce"] = _reduction(problem, d, hardware, rates)
    return {
        kernel: {name: sympy.sympify(value) for name, value in row.items()}
        for kernel, row in result.items()
    }


# ---------------------------------------------------------------- the product


def _product(
    problem: GemmProblem, d: Decisions, hardware: Hardware, rates: Rates, is_first: bool
) -> Row:
    f = _launch(problem, d, hardware)
    f |= _work(problem, d)
    f |= _ring(problem, d, f)
    f |= _traffic(problem, d, f)
    f |= _choices(problem, d)
    return f | times.product(problem, d, f, hardware, rates, is_first)


def _launch(problem: GemmProblem, d: Decisions, hardware: Hardware) -> Row:
    grid = decisions.grid(problem, d, hardware.cores)
    registers = decisions.registers(d, hardware.registers_per_core)
    shared = decisions.shared(problem, d).total
    used = expr.Select(
        expr.Less(registers.launch, registers.consumer),
        registers.launch,
        expr.Minimum(registers.launch, d.accumulators + _OTHER_REGISTERS),
    )
    block = 8 * expr.CeilDiv(used, 8) * d.threads
    resident = _least(
        expr.FloorDiv(hardware.shared_bytes_per_core, shared + 1024),
        expr.FloorDiv(hardware.registers_per_core, block),
        expr.FloorDiv(hardware.max_threads_per_core, d.threads),
    )
    blocks = grid.clusters * d.cluster_blocks
    slots = decisions.resident_clusters(d.cluster_blocks, resident, hardware.cores)
    waves = expr.CeilDiv(grid.clusters, slots)
    return {
        "grid_blocks": blocks,
        "block_threads": d.threads,
        "cluster_blocks": d.cluster_blocks,
        "shared_bytes": shared,
        "registers": used,
        "blocks_per_sm": resident,
        "waves": waves,
        "tail": grid.clusters / (waves * slots),
        "tiles_per_block": expr.CeilDiv(grid.units, grid.clusters),
    }


def _work(problem: GemmProblem, d: Decisions) -> Row:
    grid = decisions.grid(problem, d, 1)
    product = instructions.PRODUCTS[problem.a.dtype, problem.accumulator]
    tile_steps = grid.tiles_m * grid.tiles_n * problem.batch * grid.steps
    per_step = expr.FloorDiv(d.block_m, 64) * expr.FloorDiv(d.block_k, product.k)
    count = tile_steps * per_step
    return {
        "tensor_instructions": count,
        "tensor_ops": count * (2 * 64 * product.k) * d.block_n,
        "problem_ops": 2 * problem.batch * problem.m * problem.n * problem.k,
        "instruction_columns": d.block_n,
        "tile_rows": d.block_m,
        "tile_columns": d.block_n,
        "sums_per_thread": d.accumulators,
        "multiplying_warps": 4 * d.consumers,
        "tiles_at_once": d.tiles_at_once,
    }


def _ring(problem: GemmProblem, d: Decisions, f: Row) -> Row:
    grid, shared = decisions.grid(problem, d, 1), decisions.shared(problem, d)
    a, b = design.sources(problem)
    copies_a = _copies(a, d.block_m, d.cluster_n, problem, d)
    copies_b = _copies(b, d.block_n, d.cluster_m, problem, d)
    tile_steps = grid.tiles_m * grid.tiles_n * problem.batch * grid.steps
    return {
        "steps": expr.CeilDiv(grid.steps, d.parts),
        "stages": d.stages,
        "stage_bytes": shared.a_stage + shared.b_stage,
        "in_flight_bytes": shared.ring * f["blocks_per_sm"],
        "copy_instructions": tile_steps * (copies_a + copies_b),
    }


def _copies(
    source: design.Source, lines: Value, sharers: Value, problem: GemmProblem, d: Decisions
) -> Value:
    """Copies by which a block brings its share of a tile: a panel's, or of a block of channels."""
    width = layout.PANEL_BYTES // instructions.size_bytes(problem.a.dtype)
    blocks = axes.of(problem)
    if source.is_k_major:
        return expr.CeilDiv(d.block_k, blocks.block if blocks else width)
    panels = _line_panels(lines, width)
    return panels * expr.CeilDiv(d.block_k, sharers * blocks.block) if blocks else panels


def _line_panels(lines: Value, width: int) -> Value:
    """Panels of a tile whose lines are contiguous: of 128, 64 or 32 bytes, whichever divides."""
    half, quarter = width // 2, width // 4
    return expr.Select(
        expr.Equal(expr.FloorMod(lines, width), 0),
        expr.FloorDiv(lines, width),
        expr.Select(
            expr.Equal(expr.FloorMod(lines, half), 0),
            expr.FloorDiv(lines, half),
            expr.FloorDiv(lines, quarter),
        ),
    )


def _traffic(problem: GemmProblem, d: Decisions, f: Row) -> Row:
    p = problem
    grid = decisions.grid(p, d, 1)
    tile_steps = grid.tiles_m * grid.tiles_n * p.batch * grid.steps
    copied = tile_steps * f["stage_bytes"]
    # An instruction reads 32 bytes of k of each of its rows and columns.
    read_by_tensor_cores = f["tensor_instructions"] * 32 * (64 + d.block_n)
    units_m = expr.CeilDiv(p.m, d.block_m * d.cluster_m)
    units_n = expr.CeilDiv(p.n, d.block_n * d.cluster_n)
    is_split = expr.Less(1, d.split_k)
    sums = instructions.size_bytes(p.accumulator) * p.batch * p.m * p.n * d.split_k
    stored = expr.Select(is_split, sums, p.output_bytes)
    read = expr.Select(is_split, 0, p.read_bytes)
    unique = sum(source.distinct_bytes for source in design.sources(p))
    a, b = (_lines_bytes(source, p) for source in design.sources(p))
    unique_reads = expr.Select(is_split, 0, p.unique_read_bytes)
    return {
        "copied_bytes": copied,
        "shared_traffic": copied + read_by_tensor_cores,
        "l2_bytes": a * units_n + b * units_m,
        "dram_bytes": unique + unique_reads + stored,
        "read_bytes": read,
        "stored_bytes": stored,
        "workspace_bytes": expr.Select(is_split, sums, 0),
    }


def _lines_bytes(source: design.Source, problem: GemmProblem) -> int:
    """That all lines of an operand have, each of all matrices; padding is not read."""
    size = instructions.size_bytes(problem.a.dtype)
    if isinstance(source, Pixels):
        return source.reads * size
    return problem.batch * problem.k * source.lines * size


def _choices(problem: GemmProblem, d: Decisions) -> Row:
    return {
        "parts": d.parts,
        "cluster_parts": d.cluster_k,
        "group_rows": d.group_m,
        "is_persistent": expr.Less(1, d.persistent),
        "is_tma_store": expr.Less(1, d.tma_store),
        "is_row_major": int(problem.output.strides[2] == 1),
    }


# ---------------------------------------------------------------- before and after


def _pack(packs: Sequence[helpers.Pack], hardware: Hardware, rates: Rates) -> Row:
    stored = sum(layout.packed_bytes(pack.copy) for pack in packs)
    read = sum(pack.source.distinct_bytes for pack in packs)
    blocks = sum(pack.blocks for pack in packs)
    row = _moving(blocks, read + stored, hardware, rates, rates.launch_us)
    return row | {"stored_bytes": stored, "read_bytes": read, "workspace_bytes": stored}


def _moving(blocks: int, moved: Value, hardware: Hardware, rates: Rates, launch_us: float) -> Row:
    return ampere.moving(
        blocks, helpers.THREADS, moved, hardware, rates.dram, launch_us, rates.latency_us
    )


def _reduction(problem: GemmProblem, d: Decisions, hardware: Hardware, rates: Rates) -> Row:
    """The kernel that adds partial sums; all zero where there are none."""
    p = problem
    row_major = p.output.strides[2] == 1 or 1 not in p.output.strides[1:]
    inner, outer = (p.n, p.m) if row_major else (p.m, p.n)
    vectors = p.batch * outer * design.padded_inner(inner) // design.REDUCED_ELEMENTS
    sums = instructions.size_bytes(p.accumulator) * p.batch * p.m * p.n * d.split_k
    moved = sums + p.unique_read_bytes + p.output_bytes
    blocks = -(-vectors // helpers.THREADS)
    row = _moving(blocks, moved, hardware, rates, rates.next_launch_us) | {
        "stored_bytes": p.output_bytes,
        "read_bytes": p.read_bytes,
        "workspace_bytes": sums,
        "parts": d.split_k,
        "is_row_major": int(row_major),
    }
    is_launched = expr.Less(1, d.split_k)
    return {name: expr.Select(is_launched, value, 0) for name, value in row.items()}


def _least(*values: Value) -> Value:
    least = values[0]
    for value in values[1:]:
        least = expr.Minimum(least, value)
    return least
