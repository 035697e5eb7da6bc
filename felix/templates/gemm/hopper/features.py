"""Formulas of the kernels' features (`felix.templates.spec`): counts, and latency in closed form.

A block's step takes as long as the slowest of what it needs: the tensor cores, shared memory,
its share of L2, or the latency of a copy over the stages that hide it. Tiles follow each other;
stores are hidden as far as others compute meanwhile. All the while DRAM moves the unique bytes.

Notation: `d` decisions, `f` features so far by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import features as ampere
from felix.templates.gemm.hopper import decisions, design, helpers, instructions, layout
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.hopper.convolution.operands import Pixels
from felix.templates.gemm.hopper.decisions import Decisions, Value
from felix.templates.gemm.problem import GemmProblem

Row = dict[str, Value]


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """Constants of the model, fitted together to kernels timed on an H200 with a cold L2.

    As `together` takes longer than the longest, a rate may be above what the hardware reaches.

    Attributes:
        clock: of the tensor cores, over the boost clock.
        shared_bytes, l2_bytes: per cycle and SM.
        dram: share of the bandwidth of the data sheet.
        latency_us: of a copy from memory to shared memory.
        fill_us: of a wave of blocks until the ring runs.
        store_bytes, tma_store_bytes: per cycle and SM, that an epilogue stores.
        cluster_bytes, cluster_us: of adding sums within a cluster, per cycle and SM, and its
            barriers.
        hidden: share of a tile's end that other tiles hide, where there are any.
        launch_us: of a kernel until its first copy, and from its last store.
        next_launch_us: of a kernel that waits for the one before it.
    """

    clock: float = 1.19
    shared_bytes: float = 85.0
    l2_bytes: float = 82.0
    dram: float = 0.62
    latency_us: float = 1.08
    fill_us: float = 1.15
    store_bytes: float = 15.0
    tma_store_bytes: float = 1300.0
    cluster_bytes: float = 11.0
    cluster_us: float = 2.05
    hidden: float = 0.43
    launch_us: float = 4.56
    next_launch_us: float = 1.0


RATES = Rates()


def product(
    problem: GemmProblem, d: Decisions, f: Row, hardware: Hardware, rates: Rates, is_first: bool
) -> Row:
    """Times of the product's kernel; `is_first`: no kernel of the program runs before it."""
    instruction = instructions.PRODUCTS[problem.a.dtype, problem.accumulator]
    # Per microsecond: cycles, and operations or bytes of an SM.
    cycles = 1000.0 * hardware.clock_ghz * rates.clock
    tensor = instruction.flops_per_cycle * cycles
    shared, l2 = rates.shared_bytes * cycles, rates.l2_bytes * cycles
    blocks_on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    step = _step(problem, d, f, rates, blocks_on_sm, (tensor, shared, l2))
    mainloop = f["waves"] * f["tiles_per_block"] * f["steps"] * step
    store = _store(problem, d, f, rates, blocks_on_sm, cycles)
    dram = f["dram_bytes"] / (1000.0 * hardware.dram_bandwidth_gbs * rates.dram)
    launch = rates.launch_us if is_first else rates.next_launch_us
    launch += rates.fill_us * f["waves"]
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
    rates: Rates,
    blocks_on_sm: Value,
    sm_rates: tuple[float, float, float],
) -> Value:
    """A step of each block of the busiest SM, at its rates: tensor cores, shared memory, L2."""
    tensor, shared, l2 = sm_rates
    operations = 2 * d.block_m * d.block_n * d.block_k
    size = instructions.size_bytes(problem.a.dtype)
    from_l2 = size * d.block_k * (d.block_m / d.cluster_n + d.block_n / d.cluster_m)
    reads_a_copy = f["shared_traffic"] / f["copied_bytes"]
    in_shared = f["stage_bytes"] * reads_a_copy
    busy = blocks_on_sm * ampere.together(operations / tensor, in_shared / shared, from_l2 / l2)
    # A stage is refilled after its step and the next have begun: a ring's round has both.
    return expr.Maximum(busy, (rates.latency_us + 2 * busy) / d.stages)


def _store(
    problem: GemmProblem, d: Decisions, f: Row, rates: Rates, blocks_on_sm: Value, cycles: float
) -> Value:
    """Ends of tiles: the last one shows, those before it as far as nothing hides them."""
    sum_bytes = instructions.size_bytes(problem.accumulator)
    output_bytes = instructions.size_bytes(problem.output.dtype)
    stored_bytes = expr.Select(_more(d.split_k), sum_bytes, output_bytes)
    elements = blocks_on_sm * d.block_m * d.block_n
    rate = expr.Select(_more(d.tma_store), rates.tma_store_bytes, rates.store_bytes)
    added = elements * sum_bytes / (rates.cluster_bytes * cycles) + rates.cluster_us
    one = elements * stored_bytes / (rate * cycles)
    one += expr.Select(_more(d.cluster_k), added, 0)
    is_hidden = expr.Or(_more(d.tiles_at_once), expr.Or(_more(blocks_on_sm), _more(d.persistent)))
    lasting = expr.Select(is_hidden, 1 - rates.hidden, 1)
    return one * (1 + (f["waves"] * f["tiles_per_block"] - 1) * lasting)


def _more(value: Value) -> sympy.Expr:
    return expr.Less(1, value)


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
    return f | product(problem, d, f, hardware, rates, is_first)


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
