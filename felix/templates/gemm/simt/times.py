"""The closed-form model of the kernels' latency, from counts and the hardware's rates.

A step takes as long as the slowest of what the blocks of an SM need: multiply-adds, slots of the
schedulers, shared memory, their share of L2, or the latency of a copy over the stages that are
under way. Meanwhile DRAM moves the distinct bytes. Rates of multiply-adds are those of data
sheets; the other constants are estimates, not fitted to measurements.
"""

from __future__ import annotations

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import times as ampere
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.simt import decisions, layout
from felix.templates.gemm.simt.decisions import Decisions, Value

Row = dict[str, Value]

#: Bytes that threads load from shared memory in a cycle of an SM, half of them twice.
_LOADED_BYTES = 256
#: Copies to shared memory in a cycle of an SM, of any size.
_COPIES = 8
#: Instructions of a thread beside each copy, and beside those of a step.
_COPY_INSTRUCTIONS, _STEP_INSTRUCTIONS = 2, 30
#: Share of a scheduler's time that one warp alone leaves unused.
_ALONE = 0.25


def product(problem: GemmProblem, d: Decisions, f: Row, hardware: Hardware) -> Row:
    """Times of the product's kernel of features `f`."""
    cycles = 1000.0 * hardware.clock_ghz
    work = decisions.grid(problem, d)
    at_once = f["blocks_per_sm"] * hardware.cores
    whole_waves = expr.FloorDiv(work.blocks, at_once)
    rest = expr.CeilDiv(work.blocks - whole_waves * at_once, hardware.cores)
    of_whole, of_rest = (_step(problem, d, f, n, hardware) for n in (f["blocks_per_sm"], rest))
    mainloop = f["steps"] * (whole_waves * of_whole + expr.Select(expr.Less(0, rest), of_rest, 0))
    on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(work.blocks, hardware.cores))
    of_block = (f["stored_bytes"] + f["read_bytes"]) / work.blocks
    store = f["waves"] * on_sm * of_block / (ampere.STORE_BYTES * cycles)
    dram = f["dram_bytes"] / (1000.0 * hardware.dram_bandwidth_gbs * ampere.DRAM_SHARE)
    launch = ampere.LAUNCH_US + ampere.COPY_LATENCY_US * f["waves"]
    chip = cycles * hardware.cores
    return {
        "shared_us": f["shared_traffic"] / (_LOADED_BYTES * chip),
        "l2_us": (f["l2_bytes"] + f["stored_bytes"]) / (ampere.L2_BYTES * chip),
        "dram_us": dram,
        "step_us": expr.Select(expr.Less(0, whole_waves), of_whole, of_rest),
        "mainloop_us": mainloop,
        "store_us": store,
        "launch_us": launch,
        "analytic_us": launch + ampere.together(mainloop + store, dram),
    }


def _step(problem: GemmProblem, d: Decisions, f: Row, on_sm: Value, hardware: Hardware) -> Value:
    """A step of each of the `on_sm` blocks of an SM, in us."""
    cycles = 1000.0 * hardware.clock_ghz
    lanes = hardware.peak_fp32_gflops / (2 * hardware.clock_ghz * hardware.cores)
    warps = expr.Maximum(1, on_sm * d.warps)
    idle = ampere.SCHEDULERS / expr.Minimum(ampere.SCHEDULERS, warps)
    multiplying = d.block_k * d.block_m * d.block_n / lanes
    copies = decisions.thread_copies(problem, d)
    vectors = expr.CeilDiv(d.thread_m, layout.VECTOR) + expr.CeilDiv(d.thread_n, layout.VECTOR)
    of_warp = d.block_k * (d.sums + vectors) + _COPY_INSTRUCTIONS * copies + _STEP_INSTRUCTIONS
    issuing = of_warp * d.warps / ampere.SCHEDULERS
    loaded = layout.FLOAT_BYTES * d.block_k * d.threads * (d.thread_m + d.thread_n)
    in_shared = loaded / _LOADED_BYTES + copies * d.threads / _COPIES
    from_l2 = f["copied_bytes"] / decisions.grid(problem, d).tile_steps / ampere.L2_BYTES
    computing = idle * expr.Maximum(multiplying, issuing)
    slowest = expr.Maximum(computing, expr.Maximum(in_shared, from_l2))
    alone = 1 + _ALONE * ampere.SCHEDULERS / expr.Maximum(ampere.SCHEDULERS, warps)
    busy = on_sm * slowest * alone / cycles + ampere.BARRIER_US
    return expr.Maximum(busy, (ampere.COPY_LATENCY_US + busy) / d.stages)
