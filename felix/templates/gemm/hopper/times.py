"""The closed-form model of a kernel's latency, from counts and the hardware's rates.

A block's step takes as long as the slowest of what it needs: the tensor cores, shared memory,
its share of L2, or the latency of a copy over the stages that hide it. Tiles follow each other;
stores are hidden as far as others compute meanwhile. All the while DRAM moves the unique bytes.

Notation: `d` decisions, `f` features so far by name.
"""

from __future__ import annotations

import dataclasses

import sympy

from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere import features
from felix.templates.gemm.hopper import instructions
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
        "analytic_us": launch + features.together(mainloop + store, dram),
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
    busy = blocks_on_sm * features.together(operations / tensor, in_shared / shared, from_l2 / l2)
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
