"""How fast each search gets near the best: Felix, stock MetaSchedule, TVM's evolution, chance.

    python benchmarks/search_efficiency.py [--set common] [--seeds 1] [--trials felix=128 ...]

For every subgraph of a set of `subgraphs` and seed, each in a process of its own:
  felix        `felix.tune` as it is
  local        the same without descents
  exact-evolution  evolution in 8 generations of 1,024 on Felix's formulas and cost model, with
               Felix's selection of candidates
  evolution    MetaSchedule's evolutionary search with Felix's cost model, builder and runner, in
               batches of 64 as `ms.tune_tir` has them
  random       legal random schedules with Felix's builder and runner
  stock        `ms.tune_tir` as it is: evolutionary search, XGBoost, its builder and runner; the
               limit of a build alone is raised from 30 to 180 s, because its workers import TVM's
               tensor intrinsics first, and many builds fail by that
  winners      the best of each search, timed in turns by one process; of stock its four fastest
               with a cold L2, the fastest of which counts
  vendor       PyTorch eager and compiled (cuBLAS, cuDNN, inductor), TF32 off, and Felix's winner
               under the first seed, if there is one: timed in turns by one clock; once a subgraph

Stock times kernels with a warm L2 and Felix with a cold one, so every schedule of stock's that ran
is timed again by Felix's pool, and its curve has those times at the moments when stock knew them:
it is judged by the best of its schedules with a cold L2, not by the one that it would have chosen.

Felix measures the fastest candidates again at the end. Those latencies count from the moment when
the candidate was measured first. What is compared is by pairs, a search and Felix's of the same
subgraph and seed: the time to within 5 % of the best latency of any search under that seed. Where
a search never got there, the time that it ran counts, at least what the other took.

Pieces are forked from a process that has all modules, with stock TVM's tensor intrinsics too, so
no import is in any of these times, but those of processes that stock starts itself. All but stock
find measuring workers that run, as a tuner of the service keeps them. The formula cache is empty.

Pieces that are done stay in the work folder and are not run again, so the benchmark can be made
in parts. Durations in seconds, latencies in microseconds.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, efficiency, subgraphs
from benchmarks.support.searches import pieces, tuned

STRATEGIES = (*tuned.TUNED, "stock", "winners", "vendor")
TRIALS = dict.fromkeys(tuned.TUNED, 128) | {"random": 64, "stock": 64}
#: TVM's tensor intrinsics, which take long to import: stock needs them, and Felix has a stub in
#: their place where they are not imported before.
INTRINSICS = "tvm.s_tir.tensor_intrin"
#: What pieces find imported.
PRELOADED = (
    INTRINSICS,
    "tvm.s_tir.meta_schedule",
    "xgboost",
    "torch",
    "felix.tuning.tune",
    "felix.space.sketch",
    "felix.search.gradient",
    "benchmarks.support.searches.tvm_search",
    "felix.tuning.online_model",
    "felix.workloads",
    "server.tuner.warm_pools",
    "benchmarks.support.searches.vendor",
)
#: For the process that imports them: TVM asks PyTorch whether there is a GPU, and a fork of a
#: process that uses one cannot. NVML answers without.
PRELOADING = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    return search(_arguments(), efficiency)


class Report(Protocol):
    """What becomes of the collected results."""

    def render(self, data: dict[str, Any]) -> str: ...
    def table_of_pieces(self, data: dict[str, Any]) -> str: ...
    def picture(self, data: dict[str, Any], path: pathlib.Path) -> None: ...


def search(args: argparse.Namespace, report: Report, benchmark: str = "search_efficiency") -> int:
    """Run the missing pieces of parsed arguments, and report all; returns 1 if one failed."""
    failed = _run_missing(args)
    data = collect(args.work, benchmark)
    if data["runs"]:
        common.write(args.out, data)
        print(report.table_of_pieces(data), report.render(data), sep="\n\n")
        if args.picture is not None:
            report.picture(data, args.picture)
    else:
        failed = failed or ["no pieces in the work folder, so no results are written"]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_missing(args: argparse.Namespace) -> list[str]:
    """Run missing pieces, each in a process of its own; labels of those that failed."""
    started, failed = time.monotonic(), []
    for name, seed, strategy in _pieces(args):
        path, label = pieces.path_of(args.work, name, seed, strategy), f"{name}:{seed}:{strategy}"
        if path.exists() or not any(fnmatch.fnmatch(label, pattern) for pattern in args.only):
            continue
        if args.limit_s is not None and time.monotonic() - started > args.limit_s:
            print("time is up; the same command goes on")
            break
        print(f"{common.now()} {label} ...", flush=True)
        if not _run(args, name, seed, strategy, path):
            print(f"  failed, see {path.with_suffix('.log')}", file=sys.stderr)
            failed.append(label)
    return failed


def _run(
    args: argparse.Namespace, name: str, seed: int, strategy: str, path: pathlib.Path
) -> bool:
    """One piece in a fresh fork of a process that has everything imported."""
    request = {
        "name": name,
        "workload": args.workload or subgraphs.EVERY[name],
        "seed": seed,
        "strategy": strategy,
        "trials": args.trials.get(strategy),
        "target": args.target,
        "model": args.model,
        "path": str(path),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PYTHONPATH": os.pathsep.join(sys.path), **PRELOADING}
    context = multiprocessing.get_context("forkserver")
    needed = [each for each in PRELOADED if each != INTRINSICS or "stock" in args.strategies]
    context.set_forkserver_preload(needed)
    process = context.Process(target=pieces.run, args=(request, str(path.with_suffix(".log"))))
    process.start()
    process.join()
    return process.exitcode == 0 and path.exists()


def collect(work: pathlib.Path, benchmark: str = "search_efficiency") -> dict[str, Any]:
    """All pieces of the work folder, and where the latest was measured; all their commits."""
    runs = [json.loads(path.read_text()) for path in sorted(work.glob("*.json"))]
    where = sorted((run["measured_on"] for run in runs), key=lambda one: str(one["date"]))
    commits = dict.fromkeys(str(one["commit"]) for one in where)
    head = where[-1] | {"commit": ", ".join(commits)} if where else {}
    kept = [efficiency.kept(run) for run in runs]
    return common.header(benchmark) | head | {"benchmark": benchmark, "runs": kept}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", nargs="+", choices=list(subgraphs.SETS), default=["common"])
    parser.add_argument(
        "--subgraphs",
        nargs="+",
        choices=list(subgraphs.EVERY),
        metavar="NAME",
        help="only these (default: all of the sets)",
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--seeds", type=int, default=1)
    defaults = " ".join(f"{name}={count}" for name, count in TRIALS.items())
    parser.add_argument(
        "--trials",
        type=_trials,
        nargs="+",
        default=[],
        metavar="STRATEGY=N",
        help=f"those that are not named have the default ({defaults})",
    )
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--workload", help="instead of the subgraphs: one workload, as `own`")
    parser.add_argument("--model", help="checkpoint for Felix's searches, not the shipped one")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="SUBGRAPH:SEED:STRATEGY")
    parser.add_argument("--limit-s", type=float, help="begin no further piece after this long")
    work = common.PARTS / "search_efficiency"
    parser.add_argument("--work", type=pathlib.Path, default=work)
    out = common.RESULTS / "gpu-search" / "search_efficiency-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    args = parser.parse_args()
    args.trials = TRIALS | dict(args.trials)
    return args


def _trials(text: str) -> tuple[str, int]:
    """A strategy and its trials."""
    name, _, count = text.partition("=")
    if name not in TRIALS or not count.isdecimal() or int(count) == 0:
        raise argparse.ArgumentTypeError(f"not like felix=128: {text!r} ({', '.join(TRIALS)})")
    return name, int(count)


def _pieces(args: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    """All strategies of a subgraph and seed right after each other."""
    of_sets = [name for each in args.set for name in subgraphs.SETS[each]]
    names = ["own"] if args.workload else args.subgraphs or of_sets
    for seed in range(args.seeds):
        for name in names:
            for strategy in args.strategies:
                if strategy != "vendor" or seed == 0:
                    yield name, seed, strategy


if __name__ == "__main__":
    raise SystemExit(main())
