"""Formulas of the kernels' features (`felix.templates.spec`): counts; `times` has the times."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import decisions, dtypes, layout, packing, program, times
from felix.templates.gemm.ampere.decisions import MMA_M, MMA_N, Decisions
from felix.templates.gemm.ampere.times import Row
from felix.templates.gemm.problem import GemmProblem


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware, arch: str
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the product's kernel, of the one that adds partial sums, and of copies."""
    packed = packing.packed(problem)
    problem = packed.problem
    f = _launch(problem, d, hardware)
    f |= _work(problem, d)
    f |= _ring(problem, d, f)
    f |= _traffic(problem, d)
    f |= choices(problem, d.split_k, d.group_m)
    f |= times.product(problem, d, f, hardware, arch)
    f["workspace_bytes"] += sum(copy.bytes for copy in packed.copies)
    kernels = {"pack": _packing(packed, hardware)} if packed.copies else {}
    kernels |= {"gemm": f, "reduce": reduction(problem, d.split_k, hardware)}
    return {
        kernel: {name: sympy.sympify(value) for name, value in row.items()}
        for kernel, row in kernels.items()
    }


def _launch(problem: GemmProblem, d: Decisions, hardware: Hardware) -> Row:
    used, shared = decisions.registers(problem, d), decisions.shared_bytes(problem, d)
    return launch(decisions.grid(problem, d).blocks, d.threads, used, shared, hardware)


def launch(
    blocks: decisions.Value,
    threads: decisions.Value,
    used: decisions.Value,
    shared: decisions.Value,
    hardware: Hardware,
) -> Row:
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


def _work(problem: GemmProblem, d: Decisions) -> Row:
    k = dtypes.INSTRUCTIONS[problem.a.dtype, problem.b.dtype].k
    of_step = expr.FloorDiv(d.block_m, MMA_M) * expr.FloorDiv(d.block_n, MMA_N)
    instructions = decisions.grid(problem, d).tile_steps * of_step * expr.FloorDiv(d.block_k, k)
    return {
        "tensor_instructions": instructions,
        "tensor_ops": instructions * (2 * MMA_M * MMA_N * k),
        "problem_ops": 2 * problem.products,
        "instruction_columns": MMA_N,
        "tile_rows": d.block_m,
        "tile_columns": d.block_n,
        "sums_per_thread": d.accumulators,
        "multiplying_warps": d.warps_m * d.warps_n,
        "tiles_at_once": 1,
    }


def _ring(problem: GemmProblem, d: Decisions, f: Row) -> Row:
    stage = d.block_k * _element_bytes(problem) * (d.block_m + d.block_n)
    a, b = layout.matrices(problem)
    work = decisions.grid(problem, d)
    chunk_bytes = d.block_k * _element_bytes(problem)
    copies = expr.FloorDiv(chunk_bytes * d.block_m, a.copy_bytes or layout.CHUNK_BYTES)
    copies += expr.FloorDiv(chunk_bytes * d.block_n, b.copy_bytes or layout.CHUNK_BYTES)
    return {
        "steps": work.part_steps,
        "stages": d.stages,
        "stage_bytes": stage,
        "in_flight_bytes": d.stages * stage * f["blocks_per_sm"],
        "copy_instructions": work.tile_steps * copies,
    }


def _traffic(problem: GemmProblem, d: Decisions) -> Row:
    p, size = problem, _element_bytes(problem)
    work = decisions.grid(p, d)
    steps, step_bytes = work.tile_steps, d.block_k * size
    copied = steps * step_bytes * (d.block_m + d.block_n)
    # Each warp loads its rows and columns, and once more ahead of its last step's end.
    loaded_k_bytes = steps * step_bytes + work.blocks * dtypes.INSTRUCTION_K_BYTES
    loaded = loaded_k_bytes * (d.block_m * d.warps_n + d.block_n * d.warps_m)
    return {
        "copied_bytes": copied,
        "shared_traffic": copied + loaded,
        **beyond_shared(p, work, d.split_k),
    }


def beyond_shared(problem: GemmProblem, work: decisions.Grid, parts: decisions.Value) -> Row:
    """Bytes of L2, of DRAM, and of what is stored, of a product in so many parts."""
    p, size = problem, _element_bytes(problem)
    is_split = expr.Less(1, parts)
    sums = program.workspace_bytes(p, parts)
    stored = expr.Select(is_split, sums, output_bytes(p))
    a, b = layout.matrices(p)
    operands = size * (a.distinct_elements + b.distinct_elements)
    reads = expr.Select(is_split, 0, unique_read_bytes(p))
    return {
        "l2_bytes": size * (a.elements * work.tiles_n + b.elements * work.tiles_m),
        "dram_bytes": operands + reads + stored,
        "read_bytes": expr.Select(is_split, 0, read_bytes(p)),
        "stored_bytes": stored,
        "workspace_bytes": expr.Select(is_split, sums, 0),
    }


def choices(problem: GemmProblem, parts: decisions.Value, group_m: decisions.Value) -> Row:
    """What no count shows."""
    return {
        "parts": parts,
        "cluster_parts": 1,
        "group_rows": group_m,
        "is_persistent": 0,
        "is_tma_store": 0,
        "is_row_major": int(problem.output.strides[2] == 1),
    }


def reduction(problem: GemmProblem, parts: decisions.Value, hardware: Hardware) -> Row:
    """The kernel that adds partial sums; all zero where there are none."""
    sums, stored = program.workspace_bytes(problem, parts), output_bytes(problem)
    blocks = program.reduction_blocks(problem)
    moved = sums + unique_read_bytes(problem) + stored
    row = times.moving(blocks, program.REDUCTION_THREADS, moved, hardware) | {
        "dram_bytes": moved,
        "read_bytes": read_bytes(problem),
        "stored_bytes": stored,
        "workspace_bytes": sums,
        "parts": parts,
        "is_row_major": int(problem.output.strides[2] == 1),
    }
    is_launched = expr.Less(1, parts)
    return {name: expr.Select(is_launched, value, 0) for name, value in row.items()}


def _packing(packed: packing.Packed, hardware: Hardware) -> Row:
    """The kernel that copies operands."""
    written = sum(copy.bytes for copy in packed.copies)
    moved = written + sum(copy.read_bytes for copy in packed.copies)
    return times.moving(packed.blocks, packing.THREADS, moved, hardware) | {
        "dram_bytes": moved,
        "stored_bytes": written,
        "workspace_bytes": written,
        "parts": 1,
        "is_row_major": int(packed.problem.output.strides[2] == 1),
    }


def _element_bytes(problem: GemmProblem) -> int:
    return dtypes.STORAGE[problem.a.dtype].size_bytes


def output_bytes(problem: GemmProblem) -> int:
    """Of the result."""
    size = dtypes.STORAGE[problem.output.dtype].size_bytes
    return size * problem.stored_elements


def read_bytes(problem: GemmProblem) -> int:
    """Of the epilogue's reads, an element for each of C."""
    sizes = [dtypes.STORAGE[read.dtype].size_bytes for read in problem.epilogue.reads]
    return problem.stored_elements * sum(sizes)


def unique_read_bytes(problem: GemmProblem) -> int:
    """Of the epilogue's reads, each element once."""
    return sum(
        dtypes.STORAGE[read.dtype].size_bytes * problem.distinct_elements(read)
        for read in problem.epilogue.reads
    )
