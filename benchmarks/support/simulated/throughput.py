"""Candidates a second through the real pool of a cluster, whose nodes are simulated."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.support.simulated import nodes
from felix import launch_plan, workloads
from felix.measure.cluster import pool
from felix.templates import generated

#: Bytes of a program's text: kernels of templates have about as many.
SOURCE_BYTES = 15_000
#: Candidates for each device before the clock starts, and how often at most.
_WARM_UP, _PASSES = 2, 4


def programs(first: int, count: int) -> list[generated.GeneratedProgram]:
    """Programs, no two alike over all calls with other numbers."""
    launch = launch_plan.Launch("kernel", (1, 1, 1, 32, 1, 1), 0, ())
    plan = launch_plan.LaunchPlan(0, (), (launch,))
    return [
        generated.GeneratedProgram(f"// {number}\n".ljust(SOURCE_BYTES, "/"), "sm_90a", plan)
        for number in range(first, first + count)
    ]


def measure(
    n_devices: int, times: nodes.Times, n_each: int, n_builders: int | None = None
) -> dict[str, Any]:
    """The rate at which one pool over so many devices measures `n_each` candidates for each.

    Args:
        n_devices: of the pool.
        times: of the nodes.
        n_each: candidates for each device.
        n_builders: None: so many that they are not the bound.
    """
    if n_builders is None:
        n_builders = max(2, round(2 * n_devices * times.build_s / max(times.run_s, 1e-3)))
    cluster = nodes.Cluster(n_devices, n_builders, times)
    with pool.ClusterPool(
        workloads.gemm(64, 64, 64, target=nodes.TARGET), cluster, nodes.OPTIONS
    ) as over:
        n_before = _warm_up(over, cluster, n_devices)
        count = n_devices * n_each
        offered = programs(n_before, count)
        start, start_cpu = time.perf_counter(), time.process_time()
        measured = over.measure(offered)
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    assert all(each.ok for each in measured), measured
    return {
        "devices": n_devices,
        "builders": n_builders,
        "candidates": count,
        "seconds": seconds,
        "rate": count / seconds,
        "cpu_ms": 1e3 * cpu_s / count,
        "busy": cluster.most_busy,
        "ideal_rate": n_devices / times.run_s if times.run_s else None,
    }


def _warm_up(over: pool.ClusterPool, cluster: nodes.Cluster, n_devices: int) -> int:
    """Measure until every device is calibrated, or the pool keeps only some busy.

    Returns:
        How many candidates that took.
    """
    n = 0
    for _ in range(_PASSES):
        over.measure(programs(n, _WARM_UP * n_devices))
        n += _WARM_UP * n_devices
        if all(len(node.ran) > 1 for node in cluster.devices):
            break
    return n
