"""How fast each search gets near the best: Felix, stock MetaSchedule, TVM's evolution, chance.

    python benchmarks/search_efficiency.py [--set common] [--seeds 1] [--trials felix=128 ...]

For every subgraph of a set of `subgraphs` and seed, each in a process of its own:
  felix        `felix.tune` with the strategy local
  lower-bound  the same, but candidates are chosen by a lower confidence bound: the prediction less
               0.7 standard deviations of the cost model's correction
  near-parents  the same as felix, but what is polished at a time may be alike
  each-kind    the same, but generated kernels and schedules are polished apart
  resample-all  the same, but every round has new samples of all sketches, not of two
  less-polish  the same as felix with half the samples and half the generations of polishing
  more-polish  the same with twice the samples and twice the generations
  more-structures  the same as felix, but less of a first round is of one sketch and structure
  mean         the same as felix, but candidates are chosen by predictions, not by draws of the
               correction's posterior
  thompson     the same as felix, by draws twice as wide
  drawn-start  the same as felix, but the first round is not polished, and half of it is random
  gradient     `felix.tune` with the strategy of that name: a short descent from polished points
  gradient-drawn  the same, but its first round is as that of drawn-start
  gradient-before  the same with half the samples and polishing, of candidates however near
  gradient-thompson  the same as gradient, with candidates chosen as thompson does
  descent      the same, but a long descent from samples, before polishing
  evolution    MetaSchedule's evolutionary search with Felix's cost model, builder and runner, in
               batches of 64 as `ms.tune_tir` has them
  evolution-24  the same in batches of 24, as Felix has them
  exact-evolution  evolution in 8 generations of 1,024 on Felix's formulas and cost model, with
               Felix's selection of candidates
  evolution-mean  the same, chosen as mean does
  random       legal random schedules with Felix's builder and runner
  stock        `ms.tune_tir` as it is: evolutionary search, XGBoost, its builder and runner; the
               limit of a build alone is raised from 30 to 180 s, because its workers import TVM's
               tensor intrinsics first, and many builds fail by that
  winners      the best of each search, timed in turns by one process (`winners`); of stock its
               four fastest with a cold L2, the fastest of which counts
  vendor       PyTorch eager and compiled (cuBLAS, cuDNN, inductor), TF32 off, and Felix's winner
               under the first seed, if there is one: timed in turns by one clock; once a subgraph

Stock times kernels with a warm L2 and Felix with a cold one, so every schedule of stock's that ran
is timed again by Felix's pool, and its curve has those times at the moments when stock knew them:
it is judged by the best of its schedules with a cold L2, not by the one that it would have chosen.
The latter (`own_best_us` by stock's runner) and Felix's winner are timed by Felix's pool with a
warm L2 too (`best_warm_us`).

Felix measures the fastest candidates again at the end. Those latencies count from the moment when
the candidate was measured first (`finals`). Times to 90, 95 and 99 % are from the start of the
call to the first schedule that is so near the best latency of any search, and count as missing
when none was. Where another search never got there, the time that it ran is a lower bound.

Pieces are forked from a process that has all modules, TVM's tensor intrinsics too, so no import
is in any of these times, but those of processes that stock starts itself. Felix, evolution and
chance find measuring workers that run, as a tuner of the service keeps them; what starting them
took beforehand is reported apart (`pool_s`). The formula cache is empty for each.

With --lanes two processes do the pieces of Felix and of the libraries at a time: see
`benchmarks/support/lanes/pieces.py` for what they share, which is the CPU and not the GPU.

Pieces that are done stay in the work folder and are not run again, so the benchmark can be made
in parts; the results file is written again after each (with --lanes: shape), the picture at the
end; --restore takes pieces of a former results file into the new one. A piece says where it was
measured: `gpu` has the start of the GPU's UUID, `boot` that of the machine's boot. Durations in
seconds, latencies in microseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, efficiency, subgraphs, winners
from benchmarks.support.lanes import lane, overlap, pieces
from benchmarks.support.searches import pieces as searched
from benchmarks.support.searches import tuned

STRATEGIES = (*tuned.TUNED, "stock", "winners", "vendor")
TRIALS = dict.fromkeys(tuned.TUNED, 128) | {"random": 64, "stock": 64}
TIME_IS_UP = "time is up; the same command goes on"
#: What pieces find imported. The intrinsics come before Felix, which puts a stub in their place.
PRELOADED = (
    "tvm.s_tir.tensor_intrin",
    "tvm.s_tir.meta_schedule",
    "xgboost",
    "torch",
    "felix.tuning.tune",
    "felix.sketch.sketch",
    "felix.search.strategies.local",
    "felix.metaschedule.tvm_search",
    "felix.tuning.online_model",
    "felix.workloads",
    "server.tuner.warm_pools",
    "benchmarks.support.vendor",
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
    def picture(self, data: dict[str, Any], path: pathlib.Path) -> None: ...


def search(args: argparse.Namespace, report: Report, benchmark: str = "search_efficiency") -> int:
    """Run the missing pieces of parsed arguments, and report all; returns 1 if one failed."""
    restore(args.work, args.out, args.restore)
    failed = (_in_lanes if args.lanes else _after_each_other)(args, benchmark)
    data = write_results(args, benchmark)
    if data is not None:
        print(report.render(data))
        if args.picture is not None:
            report.picture(data, args.picture)
    else:
        failed = failed or ["no pieces in the work folder, so no results are written"]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def write_results(args: argparse.Namespace, benchmark: str) -> dict[str, Any] | None:
    """Write the results file of all pieces that are there; None: there are none."""
    data = collect(args, benchmark)
    if not data["runs"]:
        return None
    common.write(args.out, data)
    return data


def _after_each_other(args: argparse.Namespace, benchmark: str) -> list[str]:
    """Run missing pieces, each in a process of its own; labels of those that failed."""
    started, failed = time.monotonic(), []
    for name, seed, strategy in _pieces(args):
        path = searched.path_of(args.work, name, seed, strategy)
        if path.exists() or not _is_chosen(args, name, seed, strategy):
            continue
        if args.limit_s is not None and time.monotonic() - started > args.limit_s:
            print(TIME_IS_UP)
            break
        if not _run(args, name, seed, strategy, path):
            failed.append(_label(name, seed, strategy))
        write_results(args, benchmark)
    return failed


def _in_lanes(args: argparse.Namespace, benchmark: str) -> list[str]:
    """Run missing pieces of Felix and of the libraries at a time; labels of those that failed."""
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PYTHONPATH": os.pathsep.join(sys.path), **PRELOADING}
    run = overlap.Overlap(
        lane.Lane(args.tuning_worker, PRELOADED),
        lane.Lane(args.libraries_worker, PRELOADED),
        say=lambda text: print(f"{common.now()} {text}", flush=True),
        ended=lambda: write_results(args, benchmark),
    )
    if not run.run(missing_shapes(args), args.limit_s):
        print(TIME_IS_UP)
    return run.failed


def missing_shapes(args: argparse.Namespace) -> list[overlap.Shape]:
    """What is missing of each subgraph and seed, for two lanes.

    A search whose programs are not in the work folder is made again where the libraries are to be
    timed beside them.
    """
    shapes: dict[tuple[str, int], overlap.Shape] = {}
    chosen = [piece for piece in _pieces(args) if _is_chosen(args, *piece)]
    missing = {piece for piece in chosen if not searched.path_of(args.work, *piece).exists()}
    for name, seed, strategy in chosen:
        path = searched.path_of(args.work, name, seed, strategy)
        is_alone = path.exists() and not path.with_suffix(winners.SUFFIX).exists()
        again = is_alone and strategy in overlap.TUNING and (name, seed, "vendor") in missing
        if (name, seed, strategy) not in missing and not again:
            continue
        shape = shapes.setdefault((name, seed), overlap.Shape(name, {}))
        request = _request(args, name, seed, strategy, path) | {
            "log": str(path.with_suffix(".log")),
            "lanes": True,
        }
        if strategy in overlap.TUNING:
            shape.tuning[_label(name, seed, strategy)] = request
        else:
            phases = [request | {"phase": phase} for phase in ("prepare", "time")]
            label = _label(name, seed, strategy)
            shapes[name, seed] = dataclasses.replace(shape, libraries=(label, *phases))
    return list(shapes.values())


def _label(name: str, seed: int, strategy: str) -> str:
    return f"{name}:{seed}:{strategy}"


def _is_chosen(args: argparse.Namespace, name: str, seed: int, strategy: str) -> bool:
    return any(fnmatch.fnmatch(_label(name, seed, strategy), pattern) for pattern in args.only)


def restore(work: pathlib.Path, results: pathlib.Path, patterns: Sequence[str]) -> None:
    """Put pieces of a results file back into the work folder, so that they are not made again."""
    if not patterns:
        return
    for run in json.loads(results.read_text())["runs"]:
        label = f"{run['name']}:{run['seed']}:{run['strategy']}"
        path = searched.path_of(work, run["name"], run["seed"], run["strategy"])
        if any(fnmatch.fnmatch(label, pattern) for pattern in patterns) and not path.exists():
            common.write(path, run)


def collect(args: argparse.Namespace, benchmark: str = "search_efficiency") -> dict[str, Any]:
    """All pieces of the work folder, their commits and summary; where the latest was measured."""
    runs = [json.loads(path.read_text()) for path in sorted(args.work.glob("*.json"))]
    ordered = sorted(runs, key=lambda run: str(run["date"]))
    where = [run["measured_on"] for run in ordered if "measured_on" in run]
    return (
        common.header(benchmark)
        | (where[-1] | {"commit": ", ".join(_each(where, "commit"))} if where else {})
        | {"gpus": _each(where, "gpu"), "boots": _each(where, "boot")}
        | {
            "subgraphs": {run["name"]: run["workload"] for run in runs},
            "runs": runs,
            "summary": efficiency.summary(runs),
        }
    )


def _each(where: Sequence[dict[str, Any]], key: str) -> list[str]:
    """All values of a field, once each."""
    return list(dict.fromkeys(str(one[key]) for one in where if key in one))


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
    parser.add_argument("--model", help="checkpoint for felix and evolution, not the shipped one")
    parser.add_argument(
        "--max-compile-s",
        type=float,
        help="felix puts off what is predicted to build longer (default: as the search has it)",
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="SUBGRAPH:SEED:STRATEGY")
    parser.add_argument(
        "--restore",
        nargs="+",
        default=[],
        metavar="SUBGRAPH:SEED:STRATEGY",
        help="take these pieces from the results file that is there (default: none)",
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        help="begin no further piece (with --lanes: shape) after this long",
    )
    add_lanes(parser)
    work = common.PARTS / "search_efficiency"
    parser.add_argument("--work", type=pathlib.Path, default=work)
    out = common.RESULTS / "gpu-search" / "search_efficiency-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    args = parser.parse_args()
    args.trials = TRIALS | dict(args.trials)
    others = set(args.strategies) - {*overlap.TUNING, "vendor"}
    if args.lanes and others:
        parser.error(f"--lanes is for felix and vendor; run without it: {', '.join(others)}")
    return args


def add_lanes(parser: argparse.ArgumentParser) -> None:
    """Options of runs in two lanes."""
    parser.add_argument(
        "--lanes",
        action="store_true",
        help="tune and prepare libraries at a time, in two processes that share the CPU's cores",
    )
    parser.set_defaults(tuning_worker=pieces.tuning, libraries_worker=pieces.libraries)


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


def _request(
    args: argparse.Namespace, name: str, seed: int, strategy: str, path: pathlib.Path
) -> dict[str, Any]:
    workload = args.workload or subgraphs.EVERY[name]
    return {
        "name": name,
        "workload": workload,
        "seed": seed,
        "strategy": strategy,
        "trials": args.trials.get(strategy),
        "target": args.target,
        "model": args.model,
        "max_compile_s": args.max_compile_s,
        "path": str(path),
    }


def _run(
    args: argparse.Namespace, name: str, seed: int, strategy: str, path: pathlib.Path
) -> bool:
    """One piece in a fresh fork of a process that has everything imported."""
    request = _request(args, name, seed, strategy, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{common.now()} {name} seed {seed}: {strategy} ...", flush=True)
    os.environ |= {"PYTHONPATH": os.pathsep.join(sys.path), **PRELOADING}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=searched.run, args=(request, str(path.with_suffix(".log"))))
    process.start()
    process.join()
    if process.exitcode or not path.exists():
        print(f"  failed, see {path.with_suffix('.log')}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
