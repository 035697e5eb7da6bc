"""Formulas of the kernels' features (`felix.templates.spec`): counts, and latency in closed form.

A block's step takes as long as the slowest of what it needs: the tensor cores, shared memory,
its share of L2, or the latency of a copy over the stages that hide it. Tiles follow each other;
stores are hidden as far as others compute meanwhile. All the while DRAM moves the unique bytes.

Notation: `d` decisions, `f` features so far by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import features as ampere
from felix.templates.gemm.ampere.decisions import SYSTEM_BYTES
from felix.templates.gemm.hopper import decisions, design, helpers, instructions, layout
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.hopper.convolution.operands import Pixels
from felix.templates.gemm.hopper.decisions import Decisions, Value, more
from felix.templates.gemm.problem import GemmProblem
from felix.tir import grammar

Row = dict[str, Value]


# Constants of the model, fitted together to kernels timed on an H200 with a cold L2. As `together`
# takes longer than the longest, a rate may be above what the hardware reaches.

#: Clock of the tensor cores, over the boost clock.
_CLOCK = 1.19
#: Per cycle and SM.
_SHARED_BYTES, _L2_BYTES = 85.0, 82.0
#: Share of the bandwidth of the data sheet.
_DRAM_SHARE = 0.62
#: Of a copy from memory to shared memory; of a wave of blocks until the ring runs.
_LATENCY_US, _FILL_US = 1.08, 1.15
#: Per cycle and SM, that an epilogue stores.
_STORE_BYTES, _TMA_STORE_BYTES = 15.0, 1300.0
#: Of adding sums within a cluster, per cycle and SM; and its barriers.
_CLUSTER_BYTES, _CLUSTER_US = 11.0, 2.05
#: Share of a tile's end that other tiles hide, where there are any.
_HIDDEN = 0.43
#: Of a kernel until its first copy, and from its last store; of one that waits for another's end.
_LAUNCH_US, _NEXT_LAUNCH_US = 4.56, 1.0


def product(problem: GemmProblem, d: Decisions, f: Row, hardware: Hardware, is_first: bool) -> Row:
    """Times of the product's kernel; `is_first`: no kernel of the program runs before it."""
    instruction = instructions.PRODUCTS[problem.a.dtype, problem.accumulator]
    # Per microsecond: cycles, and operations or bytes of an SM.
    cycles = 1000.0 * hardware.clock_ghz * _CLOCK
    tensor = instruction.flops_per_cycle * cycles
    shared, l2 = _SHARED_BYTES * cycles, _L2_BYTES * cycles
    blocks_on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    step = _step(problem, d, f, blocks_on_sm, (tensor, shared, l2))
    mainloop = f["waves"] * f["tiles_per_block"] * f["steps"] * step
    store = _store(problem, d, f, blocks_on_sm, cycles)
    dram = f["dram_bytes"] / (1000.0 * hardware.dram_bandwidth_gbs * _DRAM_SHARE)
    launch = _LAUNCH_US if is_first else _NEXT_LAUNCH_US
    launch += _FILL_US * f["waves"]
    return {
        "tensor_us": f["tensor_ops"] / (tensor * hardware.cores),
        "shared_us": f["shared_traffic"] / (shared * hardware.cores),
        "l2_us": (f["l2_bytes"] + f["stored_bytes"]) / (l2 * hardware.cores),
        "dram_us": dram,
        "step_us": step,
        "mainloop_us": mainloop,
        "store_us": store,
        "launch_us": launch,
        "analytic_us": launch + ampere.together(mainloop + store, dram),
    }


def _step(
    problem: GemmProblem,
    d: Decisions,
    f: Row,
    blocks_on_sm: Value,
    sm_rates: tuple[float, float, float],
) -> Value:
    """A step of each block of the busiest SM, at its rates: tensor cores, shared memory, L2."""
    tensor, shared, l2 = sm_rates
    operations = 2 * d.block_m * d.block_n * d.block_k
    size = problem.a.element_bytes
    from_l2 = size * d.block_k * (d.block_m / d.cluster_n + d.block_n / d.cluster_m)
    reads_a_copy = f["shared_traffic"] / f["copied_bytes"]
    in_shared = f["stage_bytes"] * reads_a_copy
    busy = blocks_on_sm * ampere.together(operations / tensor, in_shared / shared, from_l2 / l2)
    # A stage is refilled after its step and the next have begun: a ring's round has both.
    return expr.Maximum(busy, (_LATENCY_US + 2 * busy) / d.stages)


def _store(
    problem: GemmProblem, d: Decisions, f: Row, blocks_on_sm: Value, cycles: float
) -> Value:
    """Ends of tiles: the last one shows, those before it as far as nothing hides them."""
    sum_bytes = grammar.element_bytes(problem.accumulator)
    output_bytes = grammar.element_bytes(problem.output.dtype)
    stored_bytes = expr.Select(more(d.split_k), sum_bytes, output_bytes)
    elements = blocks_on_sm * d.block_m * d.block_n
    rate = expr.Select(more(d.tma_store), _TMA_STORE_BYTES, _STORE_BYTES)
    added = elements * sum_bytes / (_CLUSTER_BYTES * cycles) + _CLUSTER_US
    one = elements * stored_bytes / (rate * cycles)
    one += expr.Select(more(d.cluster_k), added, 0)
    is_hidden = expr.Or(more(d.tiles_at_once), expr.Or(more(blocks_on_sm), more(d.persistent)))
    lasting = expr.Select(is_hidden, 1 - _HIDDEN, 1)
    return one * (1 + (f["waves"] * f["tiles_per_block"] - 1) * lasting)


#: What ptxas gives a thread beside its sums where registers do not change hands.
_OTHER_REGISTERS = 28


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the kernels by name: of packing where needed, product and reduction."""
    packs = design.packed(problem)[0]
    result = {"pack": _pack(packs, hardware)} if packs else {}
    result["gemm"] = _product(problem, d, hardware, is_first=not packs)
    result["reduce"] = _reduction(problem, d, hardware)
    return ampere.by_kernel(result)


# ---------------------------------------------------------------- the product


def _product(problem: GemmProblem, d: Decisions, hardware: Hardware, is_first: bool) -> Row:
    grid = decisions.grid(problem, d, hardware.cores)
    tile_steps = grid.tiles_m * grid.tiles_n * problem.batch * grid.steps
    f = _launch(problem, d, grid, hardware)
    f |= _work(problem, d, grid, tile_steps, f)
    f |= _traffic(problem, d, tile_steps, f)
    f |= ampere.choices(problem, d.parts, d.group_m) | {
        "cluster_parts": d.cluster_k,
        "is_persistent": more(d.persistent),
        "is_tma_store": more(d.tma_store),
    }
    return f | product(problem, d, f, hardware, is_first)


def _launch(problem: GemmProblem, d: Decisions, grid: decisions.Grid, hardware: Hardware) -> Row:
    registers = decisions.registers(d, hardware.registers_per_core)
    shared = decisions.shared(problem, d).total
    used = expr.Select(
        expr.Less(registers.launch, registers.consumer),
        registers.launch,
        expr.Minimum(registers.launch, d.accumulators + _OTHER_REGISTERS),
    )
    block = 8 * expr.CeilDiv(used, 8) * d.threads
    by_shared = expr.FloorDiv(hardware.shared_bytes_per_core, shared + SYSTEM_BYTES)
    by_registers = expr.FloorDiv(hardware.registers_per_core, block)
    by_threads = expr.FloorDiv(hardware.max_threads_per_core, d.threads)
    resident = expr.Minimum(expr.Minimum(by_shared, by_registers), by_threads)
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


def _work(
    problem: GemmProblem, d: Decisions, grid: decisions.Grid, tile_steps: Value, f: Row
) -> Row:
    """Instructions, tiles and the ring."""
    product = instructions.PRODUCTS[problem.a.dtype, problem.accumulator]
    per_step = expr.FloorDiv(d.block_m, 64) * expr.FloorDiv(d.block_k, product.k)
    count = tile_steps * per_step
    shared, (a, b) = decisions.shared(problem, d), design.sources(problem)
    copies_a = _copies(a, d.block_m, d.cluster_n, problem, d)
    copies_b = _copies(b, d.block_n, d.cluster_m, problem, d)
    return {
        "tensor_instructions": count,
        "tensor_ops": count * (2 * 64 * product.k) * d.block_n,
        "problem_ops": 2 * problem.products,
        "instruction_columns": d.block_n,
        "tile_rows": d.block_m,
        "tile_columns": d.block_n,
        "sums_per_thread": d.accumulators,
        "multiplying_warps": 4 * d.consumers,
        "tiles_at_once": d.tiles_at_once,
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
    width = layout.PANEL_BYTES // problem.a.element_bytes
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


def _traffic(problem: GemmProblem, d: Decisions, tile_steps: Value, f: Row) -> Row:
    copied = tile_steps * f["stage_bytes"]
    # An instruction reads 32 bytes of k of each of its rows and columns.
    read_by_tensor_cores = f["tensor_instructions"] * 32 * (64 + d.block_n)
    units_m = expr.CeilDiv(problem.m, d.block_m * d.cluster_m)
    units_n = expr.CeilDiv(problem.n, d.block_n * d.cluster_n)
    a, b = design.sources(problem)
    from_l2 = _lines_bytes(a, problem) * units_n + _lines_bytes(b, problem) * units_m
    unique = a.distinct_bytes + b.distinct_bytes
    return ampere.beyond_shared(
        problem, d.split_k, _partial_bytes(problem, d), from_l2, unique
    ) | {"copied_bytes": copied, "shared_traffic": copied + read_by_tensor_cores}


def _partial_bytes(problem: GemmProblem, d: Decisions) -> Value:
    """Of sums, if there are several parts."""
    p = problem
    return grammar.element_bytes(p.accumulator) * p.batch * p.m * p.n * d.split_k


def _lines_bytes(source: design.Source, problem: GemmProblem) -> int:
    """That all lines of an operand have, each of all matrices; padding is not read."""
    size = problem.a.element_bytes
    if isinstance(source, Pixels):
        return source.reads * size
    return problem.batch * problem.k * source.lines * size


# ---------------------------------------------------------------- before and after


def _pack(packs: Sequence[design.Pack], hardware: Hardware) -> Row:
    stored = sum(layout.packed_bytes(pack.copy) for pack in packs)
    read = sum(pack.source.distinct_bytes for pack in packs)
    blocks = sum(map(helpers.pack_blocks, packs))
    row = _moving(blocks, read + stored, hardware, _LAUNCH_US)
    return row | {"stored_bytes": stored, "read_bytes": read, "workspace_bytes": stored}


def _moving(blocks: int, moved: Value, hardware: Hardware, launch_us: float) -> Row:
    return ampere.moving(
        blocks, helpers.THREADS, moved, hardware, _DRAM_SHARE, launch_us, _LATENCY_US
    )


def _reduction(problem: GemmProblem, d: Decisions, hardware: Hardware) -> Row:
    """The kernel that adds partial sums; all zero where there are none."""
    p = problem
    partial = design.PartialSums(p)
    sums = _partial_bytes(p, d)
    moved = sums + p.unique_read_bytes + p.output_bytes
    row = _moving(helpers.reduce_blocks(p), moved, hardware, _NEXT_LAUNCH_US) | {
        "stored_bytes": p.output_bytes,
        "read_bytes": p.read_bytes,
        "workspace_bytes": sums,
        "parts": d.split_k,
        "is_row_major": int(partial.is_row_major),
    }
    return ampere.where_split(row, d.split_k)
