"""Formulas of the kernels' features (`felix.templates.spec`): counts; `times` has the times.

No instruction is one of tensor cores, so those columns are 0. `shared_traffic` counts what threads
load, each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from felix.target import Hardware
from felix.templates.gemm.ampere import features as ampere
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.simt import decisions, layout, times
from felix.templates.gemm.simt.decisions import Decisions
from felix.templates.gemm.simt.times import Row


def rows(
    problem: GemmProblem, d: Decisions, hardware: Hardware
) -> Mapping[str, Mapping[str, sympy.Expr]]:
    """Features of the product's kernel, and of the one that adds partial sums."""
    work = decisions.grid(problem, d)
    used, shared = decisions.registers(d), decisions.shared_bytes(problem, d)
    f = ampere.launch(work.blocks, d.threads, used, shared, hardware)
    f |= _work(problem, d)
    f |= _ring(problem, d, f)
    f |= _shared(problem, d)
    f |= ampere.beyond_shared(problem, work, d.split_k)
    f |= ampere.choices(problem, d.split_k, d.group_m)
    f |= times.product(problem, d, f, hardware)
    kernels = {"gemm": f, "reduce": ampere.reduction(problem, d.split_k, hardware)}
    return {
        kernel: {name: sympy.sympify(value) for name, value in row.items()}
        for kernel, row in kernels.items()
    }


def _work(problem: GemmProblem, d: Decisions) -> Row:
    return {
        "problem_ops": 2 * problem.products,
        "tile_rows": d.block_m,
        "tile_columns": d.block_n,
        "sums_per_thread": d.sums,
        "multiplying_warps": d.warps,
        "tiles_at_once": 1,
    }


def _ring(problem: GemmProblem, d: Decisions, f: Row) -> Row:
    stage, work = decisions.stage_bytes(problem, d), decisions.grid(problem, d)
    a, b = layout.tiles(problem)
    copies = a.copies(d.block_m, d.block_k) + b.copies(d.block_n, d.block_k)
    return {
        "steps": work.part_steps,
        "stages": d.stages,
        "stage_bytes": stage,
        "in_flight_bytes": d.stages * stage * f["blocks_per_sm"],
        "copy_instructions": work.tile_steps * copies,
    }


def _shared(problem: GemmProblem, d: Decisions) -> Row:
    """Bytes of shared memory."""
    work = decisions.grid(problem, d)
    a, b = layout.tiles(problem)
    of_a, of_b = a.copies(d.block_m, d.block_k), b.copies(d.block_n, d.block_k)
    of_step = layout.FLOAT_BYTES * (a.width * of_a + b.width * of_b)
    # Each thread loads its rows and columns, and once more ahead of its last step's end.
    lines = work.tile_steps * d.block_k + work.blocks
    loaded = layout.FLOAT_BYTES * lines * d.threads * (d.thread_m + d.thread_n)
    copied = work.tile_steps * of_step
    return {"copied_bytes": copied, "shared_traffic": copied + loaded}
