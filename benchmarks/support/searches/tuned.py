"""A search of Felix's, or of TVM's with Felix's cost model, builder and runner."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.support.searches import winners

#: The names of the searches: the default, a strategy of `felix.tune`, or what `_maker` makes.
TUNED = ("felix", "local", "exact-evolution", "evolution", "random")
#: Candidates of a batch of TVM's evolution, as `ms.tune_tir` has them.
TVM_BATCH = 64


def tune(request: dict[str, Any]) -> dict[str, Any]:
    """Results of a search that finds measuring workers running, as a tuner of the service does."""
    import felix
    from felix import workloads
    from felix.measure import local
    from felix.tuning import options
    from server.tuner import warm_pools

    name = request["strategy"]
    settings = options.TuneOptions(baseline=False, make_search=_maker(name))
    if name == "evolution":  # TVM knows no templates
        batch = {"round_size": TVM_BATCH, "first_round_size": TVM_BATCH}
        settings = dataclasses.replace(settings, templates=False, **batch)
    elif name == "random":
        settings = dataclasses.replace(settings, learn=False)
    task = workloads.parse(request["workload"], target=request["target"])
    with contextlib.closing(warm_pools.Pools(local.LocalPool)) as pools:
        pools.warm(request["target"])
        start = time.perf_counter()
        result = felix.tune(
            task,
            trials=request["trials"],
            seed=request["seed"],
            model=request["model"],
            strategy="local" if name == "local" else None,
            options=dataclasses.replace(settings, pool=pools.take),
        )
        wall_s = time.perf_counter() - start
    best = [] if result.best_or_none is None else [result.best.program]
    winners.write(pathlib.Path(request["path"]), task, best)
    piece = {
        "wall_s": wall_s,
        "curve": result.curve,
        "remeasured": remeasured(result),
        "n_measured": len(result.records),
        "build_s": mean_build_s(result.records),
        "breakdown": dataclasses.asdict(result.breakdown),
    }
    return piece | ({"variant": result.best.variant, "flops": task.flops} if best else {})


def _maker(name: str) -> Any:
    """What makes the searches of that name; None where Felix does."""
    from benchmarks.support.searches import baselines, tvm_search

    kinds = {
        "exact-evolution": baselines.EvolutionarySearch,
        "evolution": tvm_search.TVMEvolutionarySearch,
        "random": baselines.RandomSearch,
    }
    if name not in kinds:
        return None
    return lambda sketches, model, seed: kinds[name](sketches, model, seed=seed)


def mean_build_s(records: Sequence[Any]) -> float | None:
    """Seconds that building a candidate took on average; None if none was built."""
    built_s = [record.measured.build_s for record in records if record.measured.build_s]
    return statistics.mean(built_s) if built_s else None


def remeasured(result: Any) -> list[tuple[int, float, float]]:
    """Latencies measured again at the end, dated to the first measurement of each candidate."""
    first: dict[Any, tuple[int, float]] = {}
    for trial, record in enumerate(result.records, 1):
        first.setdefault((record.sketch_index, record.decisions), (trial, record.elapsed_s))
    return [
        (*first[record.sketch_index, record.decisions], record.latency_us)
        for record in result.repeats
        if record.measured.ok
    ]
