"""The closed-form model of the kernels' latency, from counts and the hardware's rates.

A step takes as long as the slowest of what the blocks of an SM need: tensor cores, shared memory,
their share of L2, or the latency of a copy over the stages that are under way. Meanwhile DRAM
moves the distinct bytes. Rates of tensor cores are those of data sheets; the other constants are
estimates, not fitted to measurements.
"""

from __future__ import annotations

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import dtypes
from felix.templates.gemm.ampere.decisions import Decisions, Value
from felix.templates.gemm.problem import GemmProblem

Row = dict[str, Value]

#: Operations of 16-bit products a cycle of an SM: A100, A40, L40S; of mma.sync on an H100.
_TENSOR_OPS = {"sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 2560}
_OTHER_TENSOR_OPS = 1024
#: Schedulers of an SM, each with a tensor core; a warp uses one.
SCHEDULERS = 4
#: Bytes a cycle and SM.
_SHARED_BYTES, L2_BYTES, STORE_BYTES = 128, 48, 24
#: Share of the bandwidth of the data sheet that a short kernel reaches.
DRAM_SHARE = 0.7
COPY_LATENCY_US, LAUNCH_US, _NEXT_LAUNCH_US, BARRIER_US = 0.8, 3.0, 1.0, 0.05


def product(problem: GemmProblem, d: Decisions, f: Row, hardware: Hardware, arch: str) -> Row:
    """Times of the product's kernel of features `f`."""
    cycles = 1000.0 * hardware.clock_ghz
    size = dtypes.STORAGE[problem.a.dtype].size_bytes
    tensor = _TENSOR_OPS.get(arch.rstrip("af"), _OTHER_TENSOR_OPS) * cycles * 2 / size
    on_sm = expr.Minimum(f["blocks_per_sm"], expr.CeilDiv(f["grid_blocks"], hardware.cores))
    step = _step(d, f, on_sm, cycles, tensor)
    mainloop = f["waves"] * f["steps"] * step
    of_block = (f["stored_bytes"] + f["read_bytes"]) / f["grid_blocks"]
    store = f["waves"] * on_sm * of_block / (STORE_BYTES * cycles)
    dram = f["dram_bytes"] / (1000.0 * hardware.dram_bandwidth_gbs * DRAM_SHARE)
    launch = LAUNCH_US + COPY_LATENCY_US * f["waves"]
    l2 = L2_BYTES * cycles * hardware.cores
    return {
        "tensor_us": f["tensor_ops"] / (tensor * hardware.cores),
        "shared_us": f["shared_traffic"] / (_SHARED_BYTES * cycles * hardware.cores),
        "l2_us": (f["l2_bytes"] + f["stored_bytes"]) / l2,
        "dram_us": dram,
        "step_us": step,
        "mainloop_us": mainloop,
        "store_us": store,
        "launch_us": launch,
        "analytic_us": launch + together(mainloop + store, dram),
    }


def together(a: Value, b: Value) -> Value:
    """Of two things at the same time, which get in each other's way: near the longer one."""
    return (a**4 + b**4) ** sympy.Rational(1, 4)


def _step(d: Decisions, f: Row, on_sm: Value, cycles: float, tensor: float) -> Value:
    """A step of each of the `on_sm` blocks of an SM; `tensor` are its operations a microsecond."""
    steps = f["copied_bytes"] / f["stage_bytes"]
    busy_schedulers = expr.Minimum(SCHEDULERS, on_sm * f["multiplying_warps"])
    multiplying = f["tensor_ops"] / steps * SCHEDULERS / (tensor * busy_schedulers)
    in_shared = f["shared_traffic"] / steps / (_SHARED_BYTES * cycles)
    from_l2 = f["stage_bytes"] / (L2_BYTES * cycles)
    busy = on_sm * expr.Maximum(multiplying, expr.Maximum(in_shared, from_l2)) + BARRIER_US
    return expr.Maximum(busy, (COPY_LATENCY_US + busy) / d.stages)


def moving(blocks: int, threads: int, moved: Value, hardware: Hardware) -> Row:
    """The launch and times of a kernel beside the product: it adds partial sums, or copies."""
    resident = hardware.max_threads_per_core // threads
    waves = -(-blocks // (resident * hardware.cores))
    dram = moved / (1000.0 * hardware.dram_bandwidth_gbs * DRAM_SHARE)
    return {
        "grid_blocks": blocks,
        "block_threads": threads,
        "cluster_blocks": 1,
        "blocks_per_sm": resident,
        "waves": waves,
        "tail": blocks / (waves * resident * hardware.cores),
        "tiles_per_block": 1,
        "dram_us": dram,
        "launch_us": _NEXT_LAUNCH_US,
        "analytic_us": _NEXT_LAUNCH_US + COPY_LATENCY_US + dram,
    }
