"""How fast each search gets near the best: Felix, stock MetaSchedule, TVM's evolution, chance.

    python benchmarks/search_efficiency.py [--seeds 1] [--trials 128] [--limit-s 500]

For every subgraph of `subgraphs` and seed, each in a process of its own:
  felix        `felix.tune` as it is
  evolution    MetaSchedule's evolutionary search with Felix's cost model, builder and runner
  random       legal random schedules with Felix's builder and runner
  stock        `ms.tune_tir` as it is: evolutionary search, XGBoost, its builder and runner
  vendor       PyTorch eager and compiled (cuBLAS, cuDNN, inductor), TF32 off; once a subgraph

Stock times kernels with a warm L2 and Felix with a cold one, so every schedule that was stock's
best at some moment is timed again by Felix's pool, and its curve has those times at the moments
when stock knew them. Times to 90, 95 and 99 % are from the start of the call to the first
schedule that is so near the best latency any of them found, and count as missing when none was.

Pieces that are done are kept in the work folder and not run again, so the benchmark can be made
in parts; the results file and picture are rewritten from all pieces at the end. Durations in
seconds, latencies in microseconds. Reads `felix`; writes JSON and SVG.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common, subgraphs

TUNED = {"felix": "gradient", "evolution": "tvm-evolutionary", "random": "random"}
STRATEGIES = (*TUNED, "stock", "vendor")
SHARES = (0.90, 0.95, 0.99)
FAILED_US = 1e9
#: A strategy, its time against Felix's, and whose searches share builder, runner and model.
COMPARED = ("evolution", "random", "stock")


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    args = _arguments()
    if args.piece is not None:
        _piece(json.loads(args.piece))
        return 0
    started, failed = time.monotonic(), []
    for name, seed, strategy in _pieces(args):
        path = _path(args.work, name, seed, strategy)
        label = f"{name}:{seed}:{strategy}"
        if path.exists() or not any(fnmatch.fnmatch(label, pattern) for pattern in args.only):
            continue
        if args.limit_s is not None and time.monotonic() - started > args.limit_s:
            print("time is up; the same command goes on")
            break
        if not _run(args, name, seed, strategy, path):
            failed.append(label)
    data = collect(args)
    common.write(args.out, data)
    print(render(data))
    if args.picture is not None and data["runs"]:
        picture(data, args.picture)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


# ---------------------------------------------------------------- what pieces say together


def collect(args: argparse.Namespace) -> dict[str, Any]:
    """All pieces of the work folder and their summary."""
    runs = [json.loads(path.read_text()) for path in sorted(args.work.glob("*.json"))]
    return common.header("search_efficiency") | {
        "trials": args.trials,
        "subgraphs": {run["name"]: run["workload"] for run in runs},
        "runs": runs,
        "summary": summary(runs),
    }


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per subgraph and strategy: medians over seeds of the best and of the times to shares."""
    found = []
    for name in dict.fromkeys(run["name"] for run in runs):
        own = [run for run in runs if run["name"] == name]
        finals = [run["curve"][-1][2] for run in own if run.get("curve")]
        if not finals:
            continue
        best_us = min(finals)
        vendor = [run["latency_us"] for run in own if run["strategy"] == "vendor"]
        for strategy in [s for s in STRATEGIES if s != "vendor"]:
            curves = [run["curve"] for run in own if run["strategy"] == strategy]
            if not curves:
                continue
            ends = [curve[-1][2] if curve else math.inf for curve in curves]
            entry: dict[str, Any] = {"name": name, "strategy": strategy, "seeds": len(curves)}
            entry |= {"best_us": statistics.median(ends), "of_best": best_us / min(ends)}
            for share in SHARES:
                times = [time_to(curve, best_us / share) for curve in curves]
                entry[f"to_{share:.0%}_s"] = _median([t[0] for t in times])
                entry[f"to_{share:.0%}_trials"] = _median([t[1] for t in times])
            entry |= {f"vendor_{kind}_us": value for one in vendor for kind, value in one.items()}
            found.append(entry)
    return found


def time_to(
    curve: Sequence[tuple[float, float, float]], latency_us: float
) -> tuple[float | None, float | None]:
    """Seconds and trials until a curve of (trial, elapsed_s, best_us) is at or under a latency."""
    for trial, elapsed_s, best_us in curve:
        if best_us <= latency_us:
            return elapsed_s, trial
    return None, None


def ratios(entries: Sequence[dict[str, Any]], strategy: str, share: float) -> list[float]:
    """A strategy's time to a share over Felix's, where both got there."""
    key = f"to_{share:.0%}_s"
    times = {(e["name"], e["strategy"]): e[key] for e in entries}
    return [
        value / times[name, "felix"]
        for (name, other), value in times.items()
        if other == strategy and value and times.get((name, "felix"))
    ]


def render(data: dict[str, Any]) -> str:
    """Tables in Markdown."""
    entries = data["summary"]
    keys = ["name", "strategy", "seeds", "best_us", "of_best", "to_90%_s", "to_95%_s", "to_99%_s",
            "to_95%_trials"]  # fmt: skip
    rows = [[entry[key] for key in keys] for entry in entries]
    lines = [common.table([key.replace("_", " ") for key in keys], rows)] if rows else []
    for strategy in COMPARED:
        for share in SHARES:
            found = ratios(entries, strategy, share)
            if found:
                mean = statistics.geometric_mean(found)
                lines.append(f"{strategy}: {mean:.2f} times Felix's time to {share:.0%} "
                             f"(geometric mean of {len(found)})")  # fmt: skip
    return "\n".join(lines)


def picture(data: dict[str, Any], path: pathlib.Path) -> None:
    """Best latency over time, one panel a subgraph."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(run["name"] for run in data["runs"]))
    columns = min(4, len(names))
    figure, axes = pyplot.subplots(
        -(-len(names) // columns), columns, squeeze=False, figsize=(4 * columns, 3 * len(names))
    )
    for axis, name in zip(axes.flat, names, strict=False):
        for index, strategy in enumerate([s for s in STRATEGIES if s != "vendor"]):
            own = [r for r in data["runs"] if r["name"] == name and r["strategy"] == strategy]
            for run in own:
                _, seconds, latencies = zip(*run["curve"], strict=True)
                axis.step(seconds, latencies, where="post", color=f"C{index}", label=strategy)
        axis.set(title=name, xlabel="s", ylabel="us", xscale="log", yscale="log")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def _median(values: Sequence[float | None]) -> float | None:
    """Median that counts a missing value as infinite; None if that is the median."""
    middle = statistics.median_high([math.inf if v is None else v for v in values])
    return middle if math.isfinite(middle) else None


# ---------------------------------------------------------------- pieces, from outside


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = list(subgraphs.SUBGRAPHS)
    parser.add_argument("--subgraphs", nargs="+", choices=names, default=names)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--workload", help="instead of the subgraphs: one workload, as `own`")
    parser.add_argument("--model", help="checkpoint for felix and evolution, not the shipped one")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="SUBGRAPH:SEED:STRATEGY")
    parser.add_argument("--limit-s", type=float, help="start no further piece after this long")
    work = common.RESULTS / "work" / "search_efficiency"
    parser.add_argument("--work", type=pathlib.Path, default=work)
    out = common.RESULTS / "search_efficiency-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    return parser.parse_args()


def _pieces(args: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    """All strategies of a subgraph and seed right after each other."""
    names = ["own"] if args.workload else args.subgraphs
    for seed in range(args.seeds):
        for name in names:
            for strategy in args.strategies:
                if strategy != "vendor" or seed == 0:
                    yield name, seed, strategy


def _path(work: pathlib.Path, name: str, seed: int, strategy: str) -> pathlib.Path:
    return work / f"{name}-s{seed}-{strategy}.json"


def _run(
    args: argparse.Namespace, name: str, seed: int, strategy: str, path: pathlib.Path
) -> bool:
    """One piece in a fresh process."""
    workload = args.workload or subgraphs.SUBGRAPHS[name]
    request = {"name": name, "workload": workload, "seed": seed, "strategy": strategy,
               "trials": args.trials, "target": args.target, "model": args.model,
               "path": str(path)}  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{common.now()} {name} seed {seed}: {strategy} ...", flush=True)
    with open(path.with_suffix(".log"), "w") as log:
        done = subprocess.run(
            [sys.executable, __file__, "--piece", json.dumps(request)],
            stdout=log, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode or not path.exists():
        print(f"  failed, see {path.with_suffix('.log')}", file=sys.stderr)
        return False
    return True


# ---------------------------------------------------------------- pieces, inside


def _piece(request: dict[str, Any]) -> None:
    from benchmarks import vendor

    strategy = request["strategy"]
    if strategy == "vendor":
        found = {"latency_us": vendor.latencies_us(request["workload"])}
    elif strategy == "stock":
        found = _stock(request)
    else:
        found = _tune(request)
    common.write(pathlib.Path(request["path"]), {**request, "date": common.now(), **found})


def _tune(request: dict[str, Any]) -> dict[str, Any]:
    import felix
    from felix import workloads
    from felix.tuning import options

    task = workloads.parse(request["workload"], target=request["target"])
    start = time.perf_counter()
    result = felix.tune(
        task, trials=request["trials"], seed=request["seed"], model=request["model"],
        strategy=TUNED[request["strategy"]], options=options.TuneOptions(baseline=False),
    )  # fmt: skip
    wall_s = time.perf_counter() - start
    ran = sum(record.measurement.ok for record in result.records)
    return {"wall_s": wall_s, "curve": result.curve, "n_measured": len(result.records),
            "n_ran": ran}  # fmt: skip


def _stock(request: dict[str, Any]) -> dict[str, Any]:
    import tempfile

    from tvm.s_tir import meta_schedule as ms

    from felix import cpus, workloads

    task = workloads.parse(request["workload"], target=request["target"])
    watch = _watch()
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        ms.tune_tir(
            task.mod, task.target, work_dir=scratch, max_trials_global=request["trials"],
            num_tuning_cores=cpus.available_cores(), seed=request["seed"] + 1,
            measure_callbacks=[ms.measure_callback.AddToDatabase(), watch.callback],
        )  # fmt: skip
        wall_s = time.perf_counter() - start
    curve = _timed_again(task, watch.improved, start)
    return {"wall_s": wall_s, "curve": curve, "n_measured": watch.count, "n_ran": watch.ran,
            "own_best_us": min((i[2] for i in watch.improved), default=None)}  # fmt: skip


def _watch() -> Any:
    """A measure callback that keeps (trial, time, latency_us, module) of every improvement.

    Those within 10 % of the best so far count too, because timing again may turn them round.
    """
    import types

    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    seen = types.SimpleNamespace(count=0, ran=0, improved=[], best_us=math.inf)

    @derived_object
    class Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(
            self, scheduler: Any, task_id: int, candidates: Any, builds: Any, runs: Any
        ) -> None:
            now = time.perf_counter()
            for candidate, run in zip(candidates, runs, strict=True):
                seen.count += 1
                if run.error_msg or not run.run_secs:
                    continue
                latency_us = statistics.median(float(s) for s in run.run_secs) * 1e6
                if latency_us >= FAILED_US:
                    continue
                seen.ran += 1
                if latency_us < 1.1 * seen.best_us:
                    seen.improved.append((seen.count, now, latency_us, candidate.sch.mod))
                seen.best_us = min(seen.best_us, latency_us)

    seen.callback = Watch()
    return seen


def _timed_again(
    task: Any, improved: Sequence[tuple[int, float, float, Any]], start: float
) -> list[tuple[int, float, float]]:
    """The curve of stock's bests in Felix's cold times."""
    from felix.measure import local

    with local.LocalPool(task) as pool:
        measured = pool.measure([mod for *_, mod in improved])
    curve: list[tuple[int, float, float]] = []
    for (trial, moment, _, _), measurement in zip(improved, measured, strict=True):
        latency_us = measurement.latency_us
        if latency_us is not None and (not curve or latency_us < curve[-1][2]):
            curve.append((trial, moment - start, latency_us))
    return curve


if __name__ == "__main__":
    raise SystemExit(main())
