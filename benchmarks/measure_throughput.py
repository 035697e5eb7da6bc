"""Building and running candidates on a GPU: Felix's pool against MetaSchedule's own.

    python benchmarks/measure_throughput.py [--candidates 64] [--workloads gemm conv2d ...]

For every workload the same random legal schedules (as modules, no two alike), those first that the
search predicts to build longest (`search.build_time`), are measured by
  felix        one `LocalPool` for all workloads, as a tuning run has it: cold L2, outputs checked
  stock        `ms.builder.LocalBuilder` with a worker for each core that this process may use and
               `ms.runner.LocalRunner`, else with their defaults, one batch a workload, as
               `ms.tune_tir` calls them: warm L2, outputs not checked. The limit of a build alone
               is raised from 30 to 180 s: its workers import TVM's tensor intrinsics first, and
               where that takes 30 s, every build fails by that and none is measured
and, so that latencies can be compared,
  felix-warm   the pool again, timing bundles of warm calls as the stock runner does

Stock builders start a process pool and import TVM for every batch; Felix's start with the pool,
once a run or, in the service, once for many. Its start, until every builder has built something
else, is reported by itself (`start_s`), and a second ratio counts it for every batch as if there
were no other. References of the workloads are made within Felix's time. Durations in seconds,
latencies in microseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common

WORKLOADS = {
    "gemm": "gemm:1024,1024,1024",
    "conv2d": "conv2d:1,56,56,64,64,3,padding=1",
    "softmax": "softmax:1536x128",
    "layer_norm": "layer_norm:8192x768",
}
FAILED_US = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """A workload's task and the modules to measure."""

    name: str
    task: Any
    mods: Sequence[Any]


def main() -> int:
    """Measure with every tool; prints a table and writes the results."""
    args = _arguments()
    batches = [_candidates(name, args.candidates, args.seed) for name in args.workloads]
    results: dict[str, dict[str, Any]] = {}
    start_s = felix_pass(batches, results, "felix", None, args.builders)
    if args.stock:
        for candidates in batches:
            results[candidates.name]["stock"] = stock_pass(candidates)
        from felix.runner import timing

        warm = timing.TimingOptions(
            flush=False, max_repeats=3, min_repeats=1, min_repeat_ms=20, early_stop_ratio=1e9
        )
        felix_pass(batches, results, "felix-warm", warm, args.builders)
    data = common.header("measure_throughput") | {
        "device": _device(),
        "candidates": args.candidates,
        "seed": args.seed,
        "summary": summary(results, start_s),
    }
    common.write(args.out, data)
    print(render(data))
    return 0


def felix_pass(
    batches: Sequence[Candidates],
    results: dict[str, dict[str, Any]],
    name: str,
    timing: Any,
    builders: int | None,
) -> float:
    """All candidates through one pool; returns the seconds until it was ready."""
    from felix import workloads
    from felix.builder.cuda import reference
    from felix.measure import local
    from felix.target import cpu

    start = time.perf_counter()
    options = local.LocalOptions(timing=timing, builders=builders)
    small = workloads.gemm(16, 16, 16, target="cuda")
    with local.LocalPool(small, options) as pool:
        pool.measure([reference.scheduled(small.mod)] * (builders or cpu.available_cores()))
        start_s = time.perf_counter() - start
        for candidates in batches:
            view = pool.for_task(candidates.task)
            began = time.perf_counter()
            measured = view.measure(candidates.mods)
            results.setdefault(candidates.name, {})[name] = {
                "seconds": time.perf_counter() - began,
                "latency_us": [m.latency_us for m in measured],
                "errors": [str(m.error) for m in measured if not m.ok],
                "messages": [m.message for m in measured if not m.ok][:3],
                "build_s": [m.build_s for m in measured],
                "run_s": [m.run_s for m in measured],
            }
    return start_s


def stock_pass(candidates: Candidates) -> dict[str, Any]:
    """All candidates through MetaSchedule's builder and runner."""
    from tvm.s_tir import meta_schedule as ms

    from felix.target import cpu

    task = candidates.task
    builder = ms.builder.LocalBuilder(
        max_workers=cpu.available_cores(), timeout_sec=common.STOCK_BUILD_S
    )
    runner = ms.runner.LocalRunner()
    start = time.perf_counter()
    built = builder.build([ms.builder.BuilderInput(mod, task.target) for mod in candidates.mods])
    build_s = time.perf_counter() - start
    info = ms.arg_info.ArgInfo.from_prim_func(task.mod["main"])
    start = time.perf_counter()
    futures = runner.run(
        [ms.runner.RunnerInput(b.artifact_path, "cuda", info) for b in built if not b.error_msg]
    )
    outcomes = iter([future.result() for future in futures])
    run_s = time.perf_counter() - start
    latencies = [None if b.error_msg else _microseconds(next(outcomes)) for b in built]
    return {
        "seconds": build_s + run_s,
        "build_total_s": build_s,
        "run_total_s": run_s,
        "latency_us": latencies,
        "errors": [str(b.error_msg)[-300:] for b in built if b.error_msg][:3],
    }


def summary(results: dict[str, dict[str, Any]], start_s: float) -> dict[str, Any]:
    """Candidates a second, their ratio (all; those with a latency), and how latencies compare."""
    rows = {}
    for name, tools in results.items():
        row: dict[str, Any] = {
            tool: len(run["latency_us"]) / run["seconds"] for tool, run in tools.items()
        }
        if "stock" in tools:
            row["ratio"] = row["felix"] / row["stock"]
            took_s = tools["felix"]["seconds"] + start_s
            row["ratio_started"] = tools["stock"]["seconds"] / took_s
            row["failed"] = {
                tool: len(run["latency_us"]) - _ran(run) for tool, run in tools.items()
            }
            pairs = zip(
                tools["felix-warm"]["latency_us"], tools["stock"]["latency_us"], strict=True
            )
            ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
            if len(ratios) > 1:
                row["latency_ratio"] = statistics.quantiles(ratios, n=10)
        rows[name] = row
    return rows


def _ran(run: dict[str, Any]) -> int:
    """How many candidates have a latency."""
    return sum(latency is not None for latency in run["latency_us"])


def render(data: dict[str, Any]) -> str:
    """The table of a results file."""
    rows = []
    for name, row in data["summary"].items():
        deciles = row.get("latency_ratio")
        middle = f"{deciles[0]:.3f} {deciles[4]:.3f} {deciles[8]:.3f}" if deciles else "-"
        failed = [row.get("failed", {}).get(tool) for tool in ("felix", "stock")]
        rates = [row.get(key) for key in ("felix", "stock", "ratio", "ratio_started")]
        rows.append([name, *rates, *failed, middle])
    head = ["felix 1/s", "stock 1/s", "ratio", "with the pool's start", "felix failed"]
    more = ["stock failed", "warm latency ratio 10/50/90 %"]
    table = common.table(["workload", *head, *more], rows)
    return f"{data['candidates']} random schedules of each workload.\n\n{table}"


def _candidates(name: str, count: int, seed: int) -> Candidates:
    import numpy as np

    import felix
    from felix import workloads
    from felix.search import build_time

    task = workloads.parse(WORKLOADS[name], target="cuda")
    sketches = felix.trace_sketches(task)
    compile_s_and_mod: dict[str, tuple[float, Any]] = {}
    for number, sketch in enumerate(sketches):
        missing = count // len(sketches) + (number < count % len(sketches))
        for row in sketch.sample(2 * missing, seed=seed):
            if missing == 0:
                break
            try:
                mod = sketch.schedule(row).mod
            except felix.InvalidSchedule:
                continue
            features = sketch.formulas.exact(np.asarray([row]))
            compile_s = float(build_time.BuildCost.of(sketch, features).compile_s[0])
            missing -= str(mod) not in compile_s_and_mod
            compile_s_and_mod[str(mod)] = compile_s, mod
    mods = [mod for _, mod in sorted(compile_s_and_mod.values(), key=lambda pair: -pair[0])]
    return Candidates(name, task, mods)


def _microseconds(outcome: Any) -> float | None:
    if outcome.error_msg or not outcome.run_secs:
        return None
    value = statistics.mean(float(s) for s in outcome.run_secs) * 1e6
    return value if value < FAILED_US else None


def _device() -> str:
    import tvm

    return str(tvm.cuda(0).device_name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=[*WORKLOADS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--builders", type=int, help="build workers (default: one a core)")
    parser.add_argument("--no-stock", dest="stock", action="store_false")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=common.RESULTS / "gpu-measuring" / "measure_throughput-h200.json",
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
