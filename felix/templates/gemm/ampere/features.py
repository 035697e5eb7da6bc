"""Formulas of the kernels' features (`felix.templates.spec`): counts, and the closed-form model of
their latency.

A step takes as long as the slowest of what the blocks of an SM need: tensor cores, shared memory,
their share of L2, or the latency of a copy over the stages that are under way. Meanwhile DRAM
moves the distinct bytes. Rates of tensor cores are those of data sheets; the other constants are
estimates, not fitted to measurements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import decisions, instructions, layout, packing, program
from felix.templates.gemm.ampere.decisions import MMA_M, MMA_N, Decisions, Grid, Staged, Value
from felix.templates.gemm.problem import GemmProblem

Row = dict[str, Value]
S = TypeVar("S", bound=Staged)

#: Operations of 16-bit products a cycle of an SM: A100, A40, L40S; of mma.sync on an H100.
_TENSOR_OPS = {"sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 2560}
_OTHER_TENSOR_OPS = 1024
#: Schedulers of an SM, each with a tensor core; a warp uses one.
SCHEDULERS = 4
#: Bytes a cycle and SM.
_SHARED_BYTES, L2_BYTES, _STORE_BYTES = 128, 48, 24
#: Share of the bandwidth of the data sheet that a short kernel reaches.
_DRAM_SHARE = 0.7
COPY_LATENCY_US, _LAUNCH_US, _NEXT_LAUNCH_US, BARRIER_US = 0.8, 3.0, 1.0, 0.05


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware, arch: str
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the product's kernel, of the one that adds partial sums, and of copies."""
    times = functools.partial(_times, arch=arch)
    return staged_rows(packing.packed(problem), d, hardware, _tiles, times)


def staged_rows(
    packed: packing.Packed,
    d: S,
    hardware: Hardware,
    tiles: Callable[[GemmProblem, S, Grid, Row], Row],
    times: Callable[[GemmProblem, S, Grid, Row, Hardware], Row],
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the kernels of a product by stages.

    Args:
        tiles: instructions, tiles, their copies and loads.
        times: of the product's kernel, of which the other features are given.
    """
    problem = packed.problem
    work = decisions.grid(problem, d)
    used, shared = d.registers(problem), d.shared_bytes(problem)
    f = launch(work.blocks, d.threads, used, shared, hardware)
    f |= tiles(problem, d, work, f)
    (a, b), size = layout.matrices(problem), problem.a.element_bytes
    from_l2 = size * (a.elements * work.tiles_n + b.elements * work.tiles_m)
    unique = size * (a.distinct_elements + b.distinct_elements)
    sums = program.workspace_bytes(problem, d.split_k)
    f |= beyond_shared(problem, d.split_k, sums, from_l2, unique)
    f |= choices(problem, d.split_k, d.group_m)
    f |= times(problem, d, work, f, hardware)
    f["workspace_bytes"] += sum(copy.bytes for copy in packed.copies)
    kernels = {"pack": _packing(packed, hardware)} if packed.copies else {}
    return by_kernel(kernels | {"gemm": f, "reduce": _reduction(problem, d.split_k, hardware)})


def by_kernel(kernels: Mapping[str, Row]) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Rows whose values are expressions all."""
    return {
        kernel: {name: sympy.sympify(value) for name, value in row.items()}
        for kernel, row in kernels.items()
    }


def launch(blocks: Value, threads: Value, used: Value, shared: Value, hardware: Hardware) -> Row:
    """A product's launch, of blocks with `used` registers of a thread and `shared` bytes."""
    by_registers = expr.FloorDiv(hardware.registers_per_core, 8 * expr.CeilDiv(used, 8) * threads)
    by_shared = expr.FloorDiv(hardware.shared_bytes_per_core, shared + decisions.SYSTEM_BYTES)
    by_threads = expr.FloorDiv(hardware.max_threads_per_core, threads)
    by_blocks = expr.Minimum(by_threads, hardware.max_blocks_per_core)
    resident = expr.Maximum(1, expr.Minimum(by_registers, expr.Minimum(by_shared, by_blocks)))
    waves = expr.CeilDiv(blocks, resident * hardware.cores)
    return {
        "grid_blocks": blocks,
        "block_threads": threads,
        "cluster_blocks": 1,
        "shared_bytes": shared,
        "registers": used,
        "blocks_per_sm": resident,
        "waves": waves,
        "tail": blocks / (waves * resident * hardware.cores),
        "tiles_per_block": 1,
    }


def _tiles(problem: GemmProblem, d: Decisions, work: Grid, f: Row) -> Row:
    """Instructions, tiles, their copies and loads."""
    k = instructions.INSTRUCTIONS[problem.a.dtype, problem.b.dtype].k
    of_step = expr.FloorDiv(d.block_m, MMA_M) * expr.FloorDiv(d.block_n, MMA_N)
    count = work.tile_steps * of_step * expr.FloorDiv(d.block_k, k)
    line_bytes = d.block_k * problem.a.element_bytes
    a, b = layout.matrices(problem)
    copies = expr.FloorDiv(line_bytes * d.block_m, a.copy_bytes or layout.CHUNK_BYTES)
    copies += expr.FloorDiv(line_bytes * d.block_n, b.copy_bytes or layout.CHUNK_BYTES)
    copied = work.tile_steps * line_bytes * (d.block_m + d.block_n)
    # Each warp loads its rows and columns, and once more ahead of its last step's end.
    k_bytes = work.tile_steps * line_bytes + work.blocks * instructions.INSTRUCTION_K_BYTES
    loaded = k_bytes * (d.block_m * d.warps_n + d.block_n * d.warps_m)
    stage_bytes = line_bytes * (d.block_m + d.block_n)
    return ring(problem, d, work, f, stage_bytes, copies) | {
        "tensor_instructions": count,
        "tensor_ops": count * (2 * MMA_M * MMA_N * k),
        "instruction_columns": MMA_N,
        "copied_bytes": copied,
        "shared_traffic": copied + loaded,
    }


def ring(
    problem: GemmProblem, d: Staged, work: Grid, f: Row, stage_bytes: Value, copies: Value
) -> Row:
    """Tiles and stages; `copies` fill one."""
    return {
        "problem_ops": 2 * problem.products,
        "tile_rows": d.block_m,
        "tile_columns": d.block_n,
        "sums_per_thread": d.sums,
        "multiplying_warps": d.warps,
        "tiles_at_once": 1,
        "steps": work.part_steps,
        "stages": d.stages,
        "stage_bytes": stage_bytes,
        "in_flight_bytes": d.stages * stage_bytes * f["blocks_per_sm"],
        "copy_instructions": work.tile_steps * copies,
    }


def beyond_shared(
    problem: GemmProblem, parts: Value, sums: Value, from_l2: Value, unique: Value
) -> Row:
    """Bytes of L2, of DRAM, and of what is stored, of a product in so many parts.

    Args:
        sums: bytes of partial sums.
        from_l2: bytes of operands, those within their bounds.
        unique: of these, each counted once.
    """
    is_split = expr.Less(1, parts)
    stored = expr.Select(is_split, sums, problem.output_bytes)
    reads = expr.Select(is_split, 0, problem.unique_read_bytes)
    return {
        "l2_bytes": from_l2,
        "dram_bytes": unique + reads + stored,
        "read_bytes": expr.Select(is_split, 0, problem.read_bytes),
        "stored_bytes": stored,
        "workspace_bytes": expr.Select(is_split, sums, 0),
    }


def choices(problem: GemmProblem, parts: Value, group_rows: Value) -> Row:
    """What no count shows."""
    return {
        "parts": parts,
        "cluster_parts": 1,
        "group_rows": group_rows,
        "is_persistent": 0,
        "is_tma_store": 0,
        "is_row_major": int(problem.output.is_row_major),
    }


def _reduction(problem: GemmProblem, parts: Value, hardware: Hardware) -> Row:
    """The kernel that adds partial sums; all zero where there are none."""
    sums, stored = program.workspace_bytes(problem, parts), problem.output_bytes
    blocks = program.reduction_blocks(problem)
    moved = sums + problem.unique_read_bytes + stored
    row = moving(blocks, program.REDUCTION_THREADS, moved, hardware) | {
        "read_bytes": problem.read_bytes,
        "stored_bytes": stored,
        "workspace_bytes": sums,
        "parts": parts,
        "is_row_major": int(problem.output.is_row_major),
    }
    return where_split(row, parts)


def where_split(row: Row, parts: Value) -> Row:
    """The features of a kernel that is launched where there are several parts of the sum."""
    is_launched = expr.Less(1, parts)
    return {name: expr.Select(is_launched, value, 0) for name, value in row.items()}


def _packing(packed: packing.Packed, hardware: Hardware) -> Row:
    """The kernel that copies operands."""
    written = sum(copy.bytes for copy in packed.copies)
    moved = written + sum(copy.read_bytes for copy in packed.copies)
    return moving(packed.blocks, packing.THREADS, moved, hardware) | {
        "stored_bytes": written,
        "workspace_bytes": written,
        "parts": 1,
        "is_row_major": int(packed.problem.output.is_row_major),
    }


def _times(
    problem: GemmProblem, d: Decisions, work: Grid, f: Row, hardware: Hardware, *, arch: str
) -> Row:
    cycles = 1000.0 * hardware.clock_ghz
    of_cycle = _TENSOR_OPS.get(arch.rstrip("af"), _OTHER_TENSOR_OPS)
    tensor = of_cycle * cycles * 2 / problem.a.element_bytes
    on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    step = _step_time(d, f, on_sm, cycles, tensor)
    return {
        "tensor_us": f["tensor_ops"] / (tensor * hardware.cores),
        "step_us": step,
        **times(f, hardware, _SHARED_BYTES, f["waves"] * f["steps"] * step),
    }


def times(f: Row, hardware: Hardware, shared_bytes: int, mainloop: Value) -> Row:
    """Times of the product's kernel of features `f`; `shared_bytes` in a cycle of an SM."""
    cycles = 1000.0 * hardware.clock_ghz
    on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    of_block = (f["stored_bytes"] + f["read_bytes"]) / f["grid_blocks"]
    store = f["waves"] * on_sm * of_block / (_STORE_BYTES * cycles)
    dram = f["dram_bytes"] / (1000.0 * hardware.dram_bandwidth_gbs * _DRAM_SHARE)
    launch = _LAUNCH_US + COPY_LATENCY_US * f["waves"]
    l2 = L2_BYTES * cycles * hardware.cores
    return {
        "shared_us": f["shared_traffic"] / (shared_bytes * cycles * hardware.cores),
        "l2_us": (f["l2_bytes"] + f["stored_bytes"]) / l2,
        "dram_us": dram,
        "mainloop_us": mainloop,
        "store_us": store,
        "launch_us": launch,
        "analytic_us": launch + together(mainloop + store, dram),
    }


def together(*times: Value) -> Value:
    """Of things done at the same time, which get in each other's way: near the longest one."""
    return sum(time**4 for time in times) ** sympy.Rational(1, 4)


def _step_time(d: Decisions, f: Row, on_sm: Value, cycles: float, tensor: float) -> Value:
    """A step of each of the `on_sm` blocks of an SM; `tensor` are its operations a microsecond."""
    steps = f["copied_bytes"] / f["stage_bytes"]
    busy_schedulers = expr.Minimum(SCHEDULERS, on_sm * f["multiplying_warps"])
    multiplying = f["tensor_ops"] / steps * SCHEDULERS / (tensor * busy_schedulers)
    in_shared = f["shared_traffic"] / steps / (_SHARED_BYTES * cycles)
    from_l2 = f["stage_bytes"] / (L2_BYTES * cycles)
    busy = on_sm * expr.Maximum(multiplying, expr.Maximum(in_shared, from_l2)) + BARRIER_US
    return expr.Maximum(busy, (COPY_LATENCY_US + busy) / d.stages)


def moving(
    blocks: int,
    threads: int,
    moved: Value,
    hardware: Hardware,
    dram_share: float = _DRAM_SHARE,
    launch_us: float = _NEXT_LAUNCH_US,
    latency_us: float = COPY_LATENCY_US,
) -> Row:
    """The launch and times of a kernel beside the product, which only moves bytes.

    Args:
        dram_share: of the bandwidth of the data sheet.
    """
    resident = hardware.max_threads_per_core // threads
    waves = -(-blocks // (resident * hardware.cores))
    dram = moved / (1000.0 * hardware.dram_bandwidth_gbs * dram_share)
    return {
        "grid_blocks": blocks,
        "block_threads": threads,
        "cluster_blocks": 1,
        "blocks_per_sm": resident,
        "waves": waves,
        "tail": blocks / (waves * resident * hardware.cores),
        "tiles_per_block": 1,
        "dram_bytes": moved,
        "dram_us": dram,
        "launch_us": launch_us,
        "analytic_us": launch_us + latency_us + dram,
    }
