"""A search of Felix's, or of TVM's with Felix's cost model, builder and runner."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.support import winners
from benchmarks.support.lanes import device
from benchmarks.support.searches import timing

if TYPE_CHECKING:
    from server.tuner import warm_pools

#: Strategies of `felix.tune` by their names here.
TUNED = {"felix": "local", "lower-bound": "local", "drawn-start": "local",
         "near-parents": "local", "each-kind": "local", "resample-all": "local",
         "less-polish": "local", "more-polish": "local", "more-structures": "local",
         "mean": "local", "thompson": "local",
         "gradient-before": "gradient", "gradient-thompson": "gradient",
         "gradient": "gradient", "gradient-drawn": "gradient", "descent": "gradient",
         "evolution": "tvm-evolutionary", "evolution-24": "tvm-evolutionary",
         "exact-evolution": "evolutionary", "evolution-mean": "evolutionary",
         "random": "random"}  # fmt: skip
#: What local searches have that are not as the product's.
LOCAL: dict[str, dict[str, Any]] = {
    "near-parents": {"n_moves_apart": 0},
    "each-kind": {"polishes_each_kind": True},
    "resample-all": {"n_resampled": 64},
    "less-polish": {"n_samples": 64, "n_polish": 8, "n_warm_polish": 8},
    "more-polish": {"n_samples": 256, "n_polish": 32, "n_warm_polish": 32},
}
#: Most of a first round that `more-structures` takes of one sketch and structure.
STRUCTURE_SHARE = 0.35
#: Standard deviations of the correction that predictions of `lower-bound` are lowered by.
LOWERED_BY = 0.7
#: Deviations of the posterior that candidates are taken by: of `thompson`.
DRAW_SCALE = 0.5
#: Candidates of a batch of TVM's evolution: as `ms.tune_tir` has them, and as many as Felix's.
TVM_BATCHES = {"evolution": 64, "evolution-24": 24}


def alone(request: dict[str, Any]) -> dict[str, Any]:
    from server.tuner import warm_pools

    waits = device.Waits()
    with waits.counted(), warm_pools.Pools() as pools:
        return tune(request, pools, waits, timing.warm_us)


def tune(
    request: dict[str, Any],
    pools: warm_pools.Pools,
    waits: device.Waits,
    warm_us: Callable[[Any, Any], float | None],
) -> dict[str, Any]:
    """Results of a search that measures by `pools`; `warm_us` times its winner with a warm L2.

    `lock_wait_s` is how long its candidates waited for others on the GPU, which is in `wall_s` as
    far as nothing else went on meanwhile.
    """
    import felix
    from costmodel.online import gaussian_process
    from felix import workloads
    from felix.tuning import options

    settings = options.TuneOptions(baseline=False)
    if batch := TVM_BATCHES.get(request["strategy"]):
        settings = dataclasses.replace(settings, round_size=batch, first_round_size=batch)
    else:
        sizes = search_options(request["strategy"], request["max_compile_s"])
        settings = dataclasses.replace(settings, search=sizes)
    if request["strategy"] == "lower-bound":
        learning = gaussian_process.CorrectionOptions(lowered_by=LOWERED_BY)
        settings = dataclasses.replace(settings, learning=learning)
    task = workloads.parse(request["workload"], target=request["target"])
    start = time.perf_counter()
    pools.warm(request["target"])
    pool_s, start, waited_s = time.perf_counter() - start, time.perf_counter(), waits.seconds
    result = felix.tune(
        task,
        trials=request["trials"],
        seed=request["seed"],
        model=request["model"],
        strategy=TUNED[request["strategy"]],
        options=dataclasses.replace(settings, pool=pools.take),
    )
    wall_s = time.perf_counter() - start
    failures = [r.measurement for r in result.records if not r.measurement.ok]
    piece = {
        "pool_s": pool_s,
        "wall_s": wall_s,
        "lock_wait_s": waits.seconds - waited_s,
        "curve": result.curve,
        "finals": remeasured(result),
        "n_measured": len(result.records),
        "n_ran": len(result.records) - len(failures),
        "failures": collections.Counter(f"{m.error}: {m.message[:40]}" for m in failures),
        "breakdown": dataclasses.asdict(result.breakdown),
        "build_s": mean_build_s(result.records),
    }
    best = [] if result.best_or_none is None else [result.best.program]
    winners.write(pathlib.Path(request["path"]), task, best)
    if best:
        piece |= {"variant": result.best.variant, "flops": task.flops}
    if request["strategy"] == "felix" and best:
        piece["best_warm_us"] = warm_us(task, best[0])
    return piece


def mean_build_s(records: Sequence[Any]) -> float | None:
    """Seconds that building a candidate took on average; None if none was built."""
    built_s = [record.measurement.build_s for record in records if record.measurement.build_s]
    return statistics.mean(built_s) if built_s else None


def search_options(strategy: str, max_compile_s: float | None) -> Any:
    """Options of one of Felix's searches, local ones with that limit; None: its own."""
    from felix import search

    if TUNED[strategy] == "evolutionary":
        evolution = search.EvolutionOptions()
        return by_mean(evolution) if strategy == "evolution-mean" else evolution
    if strategy == "descent":
        from benchmarks.support import gradients

        return gradients.DESCENT
    if strategy.startswith("gradient-"):
        return GRADIENT[strategy](search.GradientOptions())
    if TUNED[strategy] != "local":
        return None
    options = search.LocalOptions()
    if strategy == "drawn-start":
        options = _drawn_start(options)
    elif strategy == "more-structures":
        rule = dataclasses.replace(options.warm_selection, structure_share=STRUCTURE_SHARE)
        options = dataclasses.replace(options, warm_selection=rule)
    elif strategy == "lower-bound":
        options = by_mean(options)
    elif strategy in SELECTED:
        options = SELECTED[strategy](options)
    elif strategy in LOCAL:
        options = dataclasses.replace(options, **LOCAL[strategy])
    if max_compile_s is None:
        return None if options == search.LocalOptions() else options
    return dataclasses.replace(
        options,
        selection=dataclasses.replace(options.selection, max_compile_s=max_compile_s),
        warm_selection=dataclasses.replace(options.warm_selection, max_compile_s=max_compile_s),
    )


def by_draws(options: Any, scale: float) -> Any:
    """Options of a search that takes candidates by draws so wide; 0: by predictions."""
    rules = {
        name: dataclasses.replace(getattr(options, name), draw_scale=scale)
        for name in ("warm_selection", "selection")
        if hasattr(options, name)
    }
    return dataclasses.replace(options, **rules)


def _drawn_start(options: Any) -> Any:
    """Options of a local search whose first round is of samples, half of them random."""
    rule = dataclasses.replace(options.warm_selection, random_share=0.5)
    return dataclasses.replace(options, n_warm_polish=0, warm_selection=rule)


by_mean = functools.partial(by_draws, scale=0.0)
thompson = functools.partial(by_draws, scale=DRAW_SCALE)
#: What changes how the local search takes candidates.
SELECTED: dict[str, Callable[[Any], Any]] = {"mean": by_mean, "thompson": thompson}
#: What changes the options of the gradient search.
GRADIENT: dict[str, Callable[[Any], Any]] = {
    "gradient-before": functools.partial(
        dataclasses.replace, n_moves_apart=0, n_samples=64, n_before=3, n_polish=5, n_warm_polish=8
    ),
    "gradient-drawn": _drawn_start,
    "gradient-thompson": thompson,
}


def remeasured(result: Any) -> list[tuple[int, float, float]]:
    """Latencies measured again at the end, dated to the first measurement of each candidate."""
    first: dict[Any, tuple[int, float]] = {}
    for trial, record in enumerate(result.records, 1):
        first.setdefault((record.sketch_index, record.decisions), (trial, record.elapsed_s))
    return [
        (*first[record.sketch_index, record.decisions], record.measurement.latency_us)
        for record in result.repeats
        if record.measurement.ok
    ]
