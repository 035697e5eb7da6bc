"""Stock `ms.tune_tir`, and its schedules timed again with a cold L2."""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.support import common
from benchmarks.support.searches import winners

#: A latency that is none.
FAILED_US = 1e9
#: As many of stock's fastest as Felix measures again at the end.
N_STOCK_REMEASURED = 4


def tune(request: dict[str, Any], scratch: str) -> dict[str, Any]:
    from tvm.s_tir import meta_schedule as ms

    from felix import workloads
    from felix.target import cpu

    task = workloads.parse(request["workload"], target=request["target"])
    watch = _watch()
    cores = cpu.available_cores()  # TVM's default takes those of the whole machine
    builder = ms.builder.LocalBuilder(max_workers=cores, timeout_sec=common.STOCK_BUILD_S)
    start = time.perf_counter()
    ms.tune_tir(
        task.mod,
        task.target,
        work_dir=scratch,
        max_trials_global=request["trials"],
        num_tuning_cores=cores,
        builder=builder,
        seed=request["seed"] + 1,
        measure_callbacks=[ms.measure_callback.AddToDatabase(), watch.callback],
    )
    wall_s = time.perf_counter() - start
    counts = {"wall_s": wall_s, "n_measured": watch.count, "n_ran": len(watch.ran)}
    if not watch.ran:
        winners.write(pathlib.Path(request["path"]), task, [])
        return counts | {"curve": []}
    with winners.patient(task) as pool:
        cold_us = [each.latency_us for each in pool.measure([mod for *_, mod in watch.ran])]
    cold = [number for number, latency_us in enumerate(cold_us) if latency_us is not None]
    cold = sorted(cold, key=lambda number: cold_us[number])[:N_STOCK_REMEASURED]
    mods = [watch.ran[number][3] for number in cold]
    winners.write(pathlib.Path(request["path"]), task, mods)
    moments = [(trial, moment - start) for trial, moment, *_ in watch.ran]
    return counts | {"curve": curve_of(moments, cold_us)}


def _watch() -> Any:
    """A measure callback that records (trial, time, latency_us, module) of all that ran."""
    import types

    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    record = types.SimpleNamespace(count=0, ran=[])

    @derived_object
    class RecordTrials(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(
            self, scheduler: Any, task_id: int, candidates: Any, builds: Any, runs: Any
        ) -> None:
            now = time.perf_counter()
            for candidate, run in zip(candidates, runs, strict=True):
                record.count += 1
                if run.error_msg or not run.run_secs:
                    continue
                latency_us = statistics.median(float(s) for s in run.run_secs) * 1e6
                if latency_us < FAILED_US:
                    record.ran.append((record.count, now, latency_us, candidate.sch.mod))

    record.callback = RecordTrials()
    return record


def curve_of(
    moments: Sequence[tuple[int, float]], latencies_us: Sequence[float | None]
) -> list[tuple[int, float, float]]:
    """(trial, elapsed_s, best_us) of every improvement."""
    curve: list[tuple[int, float, float]] = []
    for (trial, elapsed_s), latency_us in zip(moments, latencies_us, strict=True):
        if latency_us is not None and (not curve or latency_us < curve[-1][2]):
            curve.append((trial, elapsed_s, latency_us))
    return curve
