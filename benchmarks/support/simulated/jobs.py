"""Jobs of `felix.tune` whose devices are simulated: the real round loop, search and scheduling."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import felix
from benchmarks.support.simulated import nodes
from felix import workloads
from felix.measure.cluster import pool
from felix.tuning import options, results

#: One of each kind of program.
WORKLOADS = (
    "gemm:1024,1024,1024",
    "conv2d:1,56,56,64,64,3,padding=1",
    "softmax:1536x128",
    "layer_norm:8192x768",
)


def tuned(
    texts: Sequence[str],
    trials: int,
    seed: int,
    n_devices: int,
    n_builders: int,
    times: nodes.Times,
    search_processes: int | None = None,
) -> dict[str, Any]:
    """One job on so many simulated devices."""
    cluster = nodes.Cluster(n_devices, n_builders, times)
    tasks = [workloads.parse(text, target=nodes.TARGET) for text in texts]
    chosen = options.TuneOptions(
        pool=lambda task: pool.ClusterPool(task, cluster, nodes.OPTIONS),
        search_processes=search_processes,
    )
    return run(tasks, trials, seed, chosen) | {"devices": n_devices, "busy": cluster.most_busy}


def run(
    tasks: Sequence[felix.Task], trials: int, seed: int, chosen: options.TuneOptions
) -> dict[str, Any]:
    """One job: its seconds, those of its parts, and the latencies that it found."""
    start, start_cpu = time.perf_counter(), time.process_time()
    result = felix.tune(list(tasks), trials=trials, seed=seed, options=chosen)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    measured = sum(len(each.records) for each in result.results)
    return {
        "trials": measured,
        "seconds": seconds,
        "rate": measured / seconds,
        "cpu_ms": 1e3 * cpu_s / measured,
        "ms": _ms(result, measured),
        "best_us": [each.best_or_none and each.best_or_none.latency_us for each in result.results],
    }


def _ms(result: results.NetworkResult, measured: int) -> dict[str, float]:
    """Milliseconds a candidate of each part of the tuner's thread, and of the workers."""
    breakdown = result.breakdown
    parts = {
        field.name.removesuffix("_s"): 1e3 * getattr(breakdown, field.name) / measured
        for field in dataclasses.fields(breakdown)
    }
    return parts | {"other": 1e3 * breakdown.other_s / measured}
