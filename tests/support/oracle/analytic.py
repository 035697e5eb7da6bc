"""Launches and analytic times of a program, from values the oracle counted.

Follows the formulas that `felix.features.analytic` documents, with plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tvm

from felix.target import Hardware
from tests.support.oracle.allocations import Site
from tests.support.oracle.expressions import element_bytes
from tests.support.oracle.programs import Nest

Values = Mapping[str, float]
Buffers = tuple[dict[str, tuple[int, ...]], dict[str, Site]]

GPU_LAUNCH_US, CPU_FORK_US = 2, 5
CPU_NEAR, CPU_MIDDLE, GPU_NEAR, GPU_MIDDLE = 32, 16, 128, 32


def kernel_values(
    nests: Sequence[Nest],
    rows: Sequence[Values],
    module: tvm.IRModule,
    buffers: Buffers,
    machine: Hardware,
) -> list[dict[str, float]]:
    """Kernel features and times, one dict a store."""
    launches = {
        tree: _launch(tree, nests, rows, module, buffers, machine)
        for tree in {n.tree for n in nests}
    }
    for launch in launches.values():
        launch["kernels"] = len(launches)
    times = _times(nests, rows, launches, buffers, machine)
    return [launches[n.tree] | times for n in nests]


def _launch(
    tree: int,
    nests: Sequence[Nest],
    rows: Sequence[Values],
    module: tvm.IRModule,
    buffers: Buffers,
    machine: Hardware,
) -> dict[str, float]:
    stores = [(n, r) for n, r in zip(nests, rows, strict=True) if n.tree == tree]
    axes: dict[str, int] = {}
    for nest, _ in stores:
        for axis in nest.axes:
            if axis.thread is not None:
                axes.setdefault(axis.thread, axis.extent)

    def extent(prefix: str) -> int:
        return math.prod(e for a, e in axes.items() if a.startswith(prefix))

    threads, grid, vthreads = extent("threadIdx"), extent("blockIdx"), extent("vthread")
    memory = _memory(nests, tree, module, buffers)
    launch: dict[str, float] = {
        "grid_blocks": grid,
        "block_threads": threads,
        "vthreads": vthreads,
        "shared_bytes": memory.get("shared", 0),
        "local_bytes": memory.get("local", 0) * vthreads,
        "unroll_body": sum(r["serial_trips"] for _, r in stores),
        "code_statements": sum(r["code_copies"] * _vectors(r, machine) for _, r in stores),
    }
    if not machine.is_gpu:
        tasks = max(r["parallel_extent"] for _, r in stores)
        rounds = math.ceil(tasks / machine.cores)
        share = tasks / (rounds * machine.cores)
        return launch | {"blocks_per_core": 1, "occupancy": share, "waves": rounds, "tail": share}
    in_warps = -(-threads // machine.warp_size) * machine.warp_size
    registers = min(24 + -(-launch["local_bytes"] // 4), 255)
    blocks = max(
        1,
        min(
            machine.max_threads_per_core // in_warps,
            machine.max_blocks_per_core,
            machine.shared_bytes_per_core // max(launch["shared_bytes"], 1),
            machine.registers_per_core // (registers * in_warps),
        ),
    )
    waves = math.ceil(grid / (blocks * machine.cores))
    return launch | {
        "blocks_per_core": blocks,
        "occupancy": blocks * in_warps / machine.max_threads_per_core,
        "waves": waves,
        "tail": grid / (waves * blocks * machine.cores),
    }


def _memory(
    nests: Sequence[Nest], tree: int, module: tvm.IRModule, buffers: Buffers
) -> dict[str, int]:
    """Bytes per scope of the buffers allocated inside a tree, pipeline versions counted."""
    shapes, sites = buffers
    totals: dict[str, int] = {}
    for buffer in module["main"].body.block.alloc_buffers:
        name, scope = str(buffer.name), str(buffer.scope()).split(".")[0]
        users = [n for n in nests if any(b.name == name for b, _, _, _ in n.slots())]
        if not sites.get(name) or users[0].tree != tree:
            continue
        size = math.prod(shapes[name]) * element_bytes(buffer)
        copies = _versions(name, sites[name], users, module) if scope == "shared" else 1
        totals[scope] = totals.get(scope, 0) + size * copies
    return totals


def _versions(name: str, site: Site, users: list[Nest], module: tvm.IRModule) -> int:
    """One more than the pipeline stages between the first and the last use of the buffer."""
    stages = site[-1].notes.get("software_pipeline_stage")
    if stages is None:
        return 1
    used = [int(stages[nest.place[len(site)]]) for nest in users if len(nest.place) > len(site)]
    return max(used) - min(used) + 1


def _times(
    nests: Sequence[Nest],
    rows: Sequence[Values],
    launches: Mapping[int, Values],
    buffers: Buffers,
    machine: Hardware,
) -> dict[str, float]:
    per_us = machine.clock_ghz * 1000
    lane_flops = machine.peak_fp32_gflops * 1000 / machine.cores / machine.vector_lanes
    near_rate, middle_rate = (GPU_NEAR, GPU_MIDDLE) if machine.is_gpu else (CPU_NEAR, CPU_MIDDLE)
    compute = near_us = middle_us = far = issue = latency = 0.0
    shapes, sites = buffers
    parameters = {}
    for nest, row in zip(nests, rows, strict=True):
        launch = launches[nest.tree]
        busy = machine.cores * launch["tail"]
        lanes = min(row["vector_extent"], machine.vector_lanes)
        width = row["vector_extent"]
        if machine.is_gpu:
            busy *= min(4 * launch["occupancy"], 1)
            lanes, width = machine.vector_lanes, 4 * machine.warp_size
        compute += row["float_ops"] / (busy * lanes * _rounded(lane_flops))
        near, middle, distant = _moved(nest, row, machine)
        near_us += near / (busy * _rounded(near_rate * per_us))
        middle_us += middle / (busy * _rounded(middle_rate * per_us))
        far += distant
        issue += row["trip_count"] / width / (busy * _rounded(per_us))
        if nest.reduce and not nest.is_init:
            latency += _chained(row, launch, machine) / (busy * _rounded(per_us))
        for buffer, _, _, _ in nest.slots():
            if str(buffer.name) not in sites:
                parameters[str(buffer.name)] = math.prod(shapes[buffer.name]) * element_bytes(
                    buffer
                )
    dram = max(far, sum(parameters.values())) / _rounded(machine.dram_bandwidth_gbs * 1000)
    start = (GPU_LAUNCH_US if machine.is_gpu else CPU_FORK_US) * len(launches)
    return {
        "analytic.compute_us": compute,
        "analytic.l1_us": near_us,
        "analytic.l2_us": middle_us,
        "analytic.dram_us": dram,
        "analytic.issue_us": issue,
        "analytic.latency_us": latency,
        "analytic.launch_us": start,
        "roofline_us": start + max(compute, near_us, middle_us, dram, issue, latency),
    }


def _vectors(row: Values, machine: Hardware) -> int:
    return 1 if machine.is_gpu else math.ceil(row["vector_extent"] / machine.vector_lanes)


def _chained(row: Values, launch: Values, machine: Hardware) -> float:
    """Core cycles of a reduction: 2 vector operations a cycle, 8 in flight (SM: 4 and 16)."""
    if machine.is_gpu:
        threads = launch["blocks_per_core"] * launch["block_threads"]
        warps = max(row["independent_updates"] * threads, 1) / machine.warp_size
        return row["trip_count"] / machine.warp_size * max(16 / warps, 1) / 4
    operations = row["trip_count"] / row["vector_extent"] * _vectors(row, machine)
    return operations * max(8 / max(row["independent_updates"], 1), 1) / 2


def _moved(nest: Nest, row: Values, machine: Hardware) -> tuple[float, float, float]:
    """Bytes into (L1 or shared memory, L2, DRAM)."""
    near = middle = far = 0.0
    for slot, (buffer, _, _, _) in enumerate(nest.slots()[:5]):
        p = f"buf{slot}."
        scope = str(buffer.scope()).split(".")[0]
        if not machine.is_gpu:
            near, middle, far = (
                total + row[p + name]
                for total, name in ((near, "l1_bytes"), (middle, "l2_bytes"), (far, "l3_bytes"))
            )
        elif scope == "shared":
            near += row[p + "bytes"] * row[p + "bank_ways"]
        elif scope == "global":
            requests = row[p + "bytes"] / (element_bytes(buffer) * machine.warp_size)
            sectors = requests * row[p + "warp_sectors"] * 32
            middle += sectors
            far += min(row[p + "unique_bytes"], sectors)
    return near, middle, far


def _rounded(value: float) -> float:
    """Rates enter the formulas as rationals of three decimals."""
    return round(value * 1000) / 1000
