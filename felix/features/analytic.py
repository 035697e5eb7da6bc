"""Kernel features: launch dimensions, occupancy, and analytic times of the whole program.

The times are a multi-level roofline: each resource (arithmetic, cache and memory levels, issue
slots) is charged for what the rows need of it, at the rate the hardware reaches with the
parallelism of the schedule; the program takes the slowest, plus launches.

Notation
    T_r    trip count of row r; S_r its work per iteration
    u      share of the machine that the tasks keep busy, in (0, 1]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from felix.features import spec, stores
from felix.symbolic import expr, ir, kernels, scalar
from felix.symbolic.ir import Scalar, SymbolicProgram
from felix.target import Hardware

#: Round costs in microseconds of starting a kernel on a GPU and a parallel region on a CPU.
GPU_LAUNCH_US = 2
CPU_FORK_US = 5
#: CPU cache rates in bytes per cycle and core; GPU in bytes per cycle and SM.
L2_BYTES_PER_CYCLE = 32
L3_BYTES_PER_CYCLE = 16
GPU_SHARED_BYTES_PER_CYCLE = 128
GPU_L2_BYTES_PER_CYCLE = 32

#: Vector operations a core must have in flight to hide the latency of a fused multiply-add (4
#: cycles): two pipes of a CPU core, four schedulers of an SM.
CPU_IN_FLIGHT = 8
GPU_IN_FLIGHT = 16
CPU_PER_CYCLE = 2
GPU_PER_CYCLE = 4

_Values = Mapping[str, Scalar]


def kernel_values(
    program: SymbolicProgram,
    rows: Sequence[stores.Row],
    values: Sequence[_Values],
    hardware: Hardware,
) -> list[dict[str, Scalar]]:
    """Kernel features of each kernel, by name; analytic times are of the whole program."""
    all_kernels = kernels.kernels(program)
    launches = [
        {name: expr.share(value) for name, value in _launch(k, rows, values, hardware).items()}
        for k in all_kernels
    ]
    used = sorted({r.kernel for r in rows})
    times = _times(rows, values, launches, hardware, len(used))
    return [{**launch, "kernels": len(used), **times} for launch in launches]


def _launch(
    kernel: kernels.Kernel,
    rows: Sequence[stores.Row],
    values: Sequence[_Values],
    hardware: Hardware,
) -> dict[str, Scalar]:
    kernel_rows = [v for r, v in zip(rows, values, strict=True) if r.kernel == kernel.index]
    body = sum((v["serial_trips"] for v in kernel_rows), start=0)
    code = sum((v["code_copies"] * _vectors(v, hardware) for v in kernel_rows), start=0)
    launch: dict[str, Scalar] = {
        "grid_blocks": kernel.grid_blocks,
        "block_threads": kernel.block_threads,
        "vthreads": kernel.vthreads,
        "shared_bytes": kernel.shared_bytes,
        "local_bytes": kernel.local_bytes,
        "unroll_body": body,
        "code_statements": code,
    }
    if hardware.is_gpu:
        return launch | _gpu_occupancy(kernel, hardware)
    tasks: Scalar = 1
    for v in kernel_rows:
        tasks = scalar.maximum(tasks, v["parallel_extent"])
    slots = scalar.ceil_div(tasks, hardware.cores)
    share = _ratio(tasks, slots * hardware.cores)
    return launch | {"blocks_per_core": 1, "occupancy": share, "waves": slots, "tail": share}


def _gpu_occupancy(kernel: kernels.Kernel, hardware: Hardware) -> dict[str, Scalar]:
    warps = scalar.ceil_div(kernel.block_threads, hardware.warp_size) * hardware.warp_size
    by_threads = scalar.floor_div(hardware.max_threads_per_core, warps)
    by_shared = scalar.floor_div(
        hardware.shared_bytes_per_core, scalar.maximum(kernel.shared_bytes, 1)
    )
    # of one thread: 24 for addresses and operands, its local buffers, at most 255
    registers = scalar.minimum(24 + scalar.ceil_div(kernel.local_bytes, 4), 255)
    by_registers = scalar.floor_div(hardware.registers_per_core, registers * warps)
    blocks = scalar.minimum(
        scalar.minimum(by_threads, hardware.max_blocks_per_core),
        scalar.minimum(by_shared, by_registers),
    )
    blocks = scalar.maximum(blocks, 1)
    slots = blocks * hardware.cores
    waves = scalar.ceil_div(kernel.grid_blocks, slots)
    return {
        "blocks_per_core": blocks,
        "occupancy": _ratio(blocks * warps, hardware.max_threads_per_core),
        "waves": waves,
        "tail": _ratio(kernel.grid_blocks, waves * slots),
    }


def _ratio(a: Scalar, b: Scalar) -> Scalar:
    return 0 if scalar.is_static(a, 0) else scalar.rational(a) / b


def _times(
    rows: Sequence[stores.Row],
    values: Sequence[_Values],
    launches: Sequence[_Values],
    hardware: Hardware,
    n_kernels: int,
) -> dict[str, Scalar]:
    per_us = hardware.clock_ghz * 1000
    compute: Scalar = 0
    l1: Scalar = 0
    l2: Scalar = 0
    dram: Scalar = 0
    issue: Scalar = 0
    latency: Scalar = 0
    for row, v in zip(rows, values, strict=True):
        launch = launches[row.kernel]
        busy = expr.share(hardware.cores * _busy(launch, hardware))
        lanes = expr.share(_lanes(v, hardware))
        flops = hardware.peak_fp32_gflops * 1000 / hardware.cores / hardware.vector_lanes
        compute = compute + _ratio(v["float_ops"], busy * lanes * _number(flops))
        a, b, c = _moved(row, v, hardware)
        rates = _rates(hardware)
        l1 = l1 + _ratio(a, busy * _number(rates[0] * per_us))
        l2 = l2 + _ratio(b, busy * _number(rates[1] * per_us))
        dram = dram + c
        width = scalar.rational(hardware.warp_size * 4) if hardware.is_gpu else v["vector_extent"]
        issue = issue + v["trip_count"] / width / (busy * _number(per_us))
        if row.block.is_reduction and not row.is_init:
            latency = latency + _chained(v, launch, hardware) / (busy * _number(per_us))
    dram = scalar.maximum(dram, _parameter_bytes(rows)) / _number(
        hardware.dram_bandwidth_gbs * 1000
    )
    compute, l1, l2, dram, issue, latency = map(
        expr.share, (compute, l1, l2, dram, issue, latency)
    )
    start = (GPU_LAUNCH_US if hardware.is_gpu else CPU_FORK_US) * n_kernels
    slowest = scalar.maximum(compute, scalar.maximum(l1, l2))
    slowest = scalar.maximum(slowest, scalar.maximum(dram, scalar.maximum(issue, latency)))
    return {
        "analytic.compute_us": compute,
        "analytic.l1_us": l1,
        "analytic.l2_us": l2,
        "analytic.dram_us": dram,
        "analytic.issue_us": issue,
        "analytic.latency_us": latency,
        "analytic.launch_us": start,
        "roofline_us": start + slowest,
    }


def _number(value: float) -> Scalar:
    return scalar.rational(round(value * 1000)) / 1000


def _busy(launch: _Values, hardware: Hardware) -> Scalar:
    """u: share of all cores kept busy on average, counting the last, partly filled round.

    A GPU also needs warps to hide latency: u is scaled by occupancy below one quarter.
    """
    if not hardware.is_gpu:
        return scalar.rational(launch["tail"])
    hiding = scalar.minimum(launch["occupancy"] * 4, 1)
    return launch["tail"] * hiding


def _lanes(v: _Values, hardware: Hardware) -> Scalar:
    """Vector lanes the row uses of those one core has."""
    if hardware.is_gpu:
        return hardware.vector_lanes
    return scalar.minimum(v["vector_extent"], hardware.vector_lanes)


def _vectors(v: _Values, hardware: Hardware) -> Scalar:
    """Machine vectors that one iteration of the vectorized loop's whole extent fills."""
    return 1 if hardware.is_gpu else scalar.ceil_div(v["vector_extent"], hardware.vector_lanes)


def _chained(v: _Values, launch: _Values, hardware: Hardware) -> Scalar:
    """Cycles of all cores for a reduction's updates, those that wait for the last one included."""
    updates = v["independent_updates"]
    if hardware.is_gpu:
        operations = scalar.rational(v["trip_count"]) / hardware.warp_size
        updates = updates * launch["blocks_per_core"] * launch["block_threads"]
        wait = _ratio(GPU_IN_FLIGHT * hardware.warp_size, scalar.maximum(updates, 1))
        return operations * scalar.maximum(wait, 1) / GPU_PER_CYCLE
    operations = scalar.rational(v["trip_count"]) / v["vector_extent"] * _vectors(v, hardware)
    wait = _ratio(CPU_IN_FLIGHT, scalar.maximum(updates, 1))
    return operations * scalar.maximum(wait, 1) / CPU_PER_CYCLE


def _moved(row: stores.Row, v: _Values, hardware: Hardware) -> tuple[Scalar, Scalar, Scalar]:
    """Bytes the row moves into (L1 or shared, L2, DRAM)."""
    near: Scalar = 0
    middle: Scalar = 0
    far: Scalar = 0
    for slot in range(min(spec.SLOTS, len(row.accesses))):
        buffer = row.accesses[slot][0]
        p = f"buf{slot}."
        if not hardware.is_gpu:
            near = near + v[p + "l1_bytes"]
            middle = middle + v[p + "l2_bytes"]
            far = far + v[p + "l3_bytes"]
            continue
        scope = buffer.scope.split(".")[0]
        if scope == "shared":
            near = near + v[p + "bytes"] * v[p + "bank_ways"]
        elif scope == "global":
            requests = _ratio(v[p + "bytes"], buffer.dtype_bytes * hardware.warp_size)
            sectors = requests * v[p + "warp_sectors"] * 32
            middle = middle + sectors
            far = far + scalar.minimum(v[p + "unique_bytes"], sectors)
    return near, middle, far


def _rates(hardware: Hardware) -> tuple[int, int]:
    if hardware.is_gpu:
        return GPU_SHARED_BYTES_PER_CYCLE, GPU_L2_BYTES_PER_CYCLE
    return L2_BYTES_PER_CYCLE, L3_BYTES_PER_CYCLE


def _parameter_bytes(rows: Sequence[stores.Row]) -> int:
    """Bytes of all arguments: they come from and go to DRAM once at least."""
    parameter_bytes = {
        b.name: ir.product(b.shape) * b.dtype_bytes
        for r in rows
        for b, _, _, _ in r.accesses
        if b.is_parameter
    }
    return int(sum(parameter_bytes.values()))
