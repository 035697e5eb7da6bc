"""What a candidate costs more when its builder and its device are reached through Ray.

Two comparisons of the same candidates, on one machine:

- *transport*: a node that takes no time, as an actor of Ray and in this process. What differs is
  messages, binaries and processes alone. Binaries are small, or as large as a cubin may be.
- *whole*: programs for this CPU, measured by a local pool and by a node of a cluster with the same
  builder and run worker, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.support.simulated import nodes, ray_head, throughput
from felix import target, workloads
from felix.builder import payload
from felix.measure import local
from felix.measure.cluster import messages, node, pool, remote
from felix.measure.measurer import Measurer

#: Bytes of binaries: nothing to speak of, and those of a large cubin or library.
BINARY_BYTES = (32, 300 << 10)
_CALLS = 100
#: Candidates that are really built and run, which takes most of a second each.
_N_WHOLE = 16
_WORKLOAD = "gemm:64,64,64"


def measure(turns: int, n_candidates: int) -> dict[str, Any]:
    """Both comparisons: medians over turns, in milliseconds a candidate."""
    simulated, real = messages.of(target.parse(nodes.TARGET)), messages.of(target.parse("llvm"))
    with ray_head.cluster((simulated, real)) as cluster:
        transport = [_transport(cluster, size, turns, n_candidates) for size in BINARY_BYTES]
        return {"transport": transport, "whole": _whole(cluster, real, turns)}


def _transport(cluster: Any, size: int, turns: int, n_candidates: int) -> dict[str, Any]:
    import ray

    times = nodes.Times(binary_bytes=size)
    kind = messages.of(target.parse(nodes.TARGET))
    actor = ray_head.start(f"simulated-{size}", nodes.Node, times, 1, True, kind=kind)
    here = nodes.Cluster(1, 1, times)
    task = workloads.gemm(64, 64, 64, target=nodes.TARGET)
    taken: dict[str, list[float]] = {"ray": [], "here": []}
    with (
        pool.ClusterPool(task, cluster, nodes.OPTIONS) as far,
        pool.ClusterPool(task, here, nodes.OPTIONS) as near,
    ):
        for turn in range(turns + 1):  # the first one opens what is opened once
            programs = throughput.programs(turn * n_candidates, n_candidates)
            for name, over in (("ray", far), ("here", near)):
                taken[name].append(_ms(over, programs))
    calls = _calls(cluster, size)
    ray.kill(actor)
    row = {name: statistics.median(ms[1:]) for name, ms in taken.items()}
    return {"binary_bytes": size, **row, "added": row["ray"] - row["here"], **calls}


def _calls(cluster: Any, size: int) -> dict[str, float]:
    """Milliseconds of one request to build, and of one to run a batch, one after another."""
    import threading

    (member,) = [each for each in cluster.members() if each.unfit is None and each.builders]
    link = cluster.link(member, threading.Event())
    (program,) = throughput.programs(0, 1)
    text = remote.messages.write(
        payload=payload.of(program, target.parse(nodes.TARGET)), **{"for": "cuda"}
    )
    batch = remote.messages.write(client="benchmark", candidates=[])
    binaries = [bytes(size)] * remote.BATCH
    build_ms = [_timed(lambda: link.call("build", text)) for _ in range(_CALLS)]
    run_ms = [_timed(lambda: link.call("run", batch, binaries)) for _ in range(_CALLS)]
    return {"build_call": statistics.median(build_ms), "run_call": statistics.median(run_ms)}


def _whole(cluster: Any, kind: str, turns: int) -> dict[str, Any]:
    import ray

    settings = node.Settings(builders=1, target="llvm")
    actor = ray_head.start("measures", node.Node, settings, kind=kind)
    task = workloads.parse(_WORKLOAD, target="llvm")
    taken: dict[str, list[float]] = {"local": [], "ray": []}
    with (
        local.LocalPool(task, local.LocalOptions(builders=1)) as near,
        pool.ClusterPool(task, cluster, nodes.OPTIONS) as far,
    ):
        for over in (near, far):
            over.measure([task.mod])  # the reference
        for turn in range(turns):
            mods = [
                task.mod.with_attr("candidate", turn * _N_WHOLE + number)
                for number in range(_N_WHOLE)
            ]
            for name, over in (("local", near), ("ray", far)):
                taken[name].append(_ms(over, mods))
    ray.kill(actor)
    added = [far - near for far, near in zip(taken["ray"], taken["local"], strict=True)]
    row = {name: statistics.median(ms) for name, ms in taken.items()}
    return {"workload": _WORKLOAD, **row, "added": statistics.median(added), "turns": added}


def _ms(over: Measurer, programs: Sequence[Any]) -> float:
    start = time.perf_counter()
    measured = over.measure(programs)
    taken_ms = 1e3 * (time.perf_counter() - start) / len(programs)
    failed = [each.message for each in measured if not each.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} candidates failed: {failed[0]}")
    return taken_ms


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
