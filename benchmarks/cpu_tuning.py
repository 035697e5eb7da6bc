"""Felix against stock `ms.tune_tir` on this CPU: wall time of tuning and the best latency.

    python benchmarks/cpu_tuning.py [--trials 64] [--seeds 3] [--workloads gemm conv2d ...]
    python benchmarks/cpu_tuning.py --only 'gemm:0:*' 'conv2d:*:felix'
    python benchmarks/cpu_tuning.py --products --seeds 1
    python benchmarks/cpu_tuning.py --limit-s 1800

For every workload and seed there are pieces, each in a process of its own: tuning with each
tool, and a comparison that builds all winners and times them in turns with one timer on the same
inputs, with cold and with warm caches. Pieces that are done lie in `benchmarks/results/parts/NAME`
and are not run again, so a run can be interrupted or made in parts; the results file is rewritten
after each piece.

Tools:
  felix        `felix.tune` as it is, with an empty formula cache
  stock        `ms.tune_tir` as it is: evolutionary search, XGBoost, LocalBuilder, LocalRunner. The
               time limit of a build alone is raised from 30 to 180 s, because every build worker
               imports TVM's tensor intrinsics first (20 s and more) and may fail on a busy
               machine
  torch        PyTorch eager, where it is installed: a part of every comparison

All pieces run kernels with a thread for each available core, stock's runner and the comparison
too: by itself TVM takes half of them on x86, as if each were half of a hyper-threaded one.

Durations in seconds, latencies in microseconds. `wall_s` is the call of `felix.tune` or
`ms.tune_tir` alone, without the tuner's import of the intrinsics; `process_s` is everything from
starting Python.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, cpu_pieces, ratios
from benchmarks.support.cpu_pieces import COMPARE, STOCK, TOOLS, TORCH
from felix.target import cpu

WORKLOADS = {
    "gemm": "gemm:512,512,512",
    "conv2d": "conv2d:1,56,56,64,64,3,padding=1",
    "softmax": "softmax:1024x1024",
    "layer_norm": "layer_norm:1024x1024",
    "gemm64": "gemm:64,64,64",  # for a quick check of this benchmark
}
DEFAULT = ("gemm", "conv2d", "softmax", "layer_norm")
#: GEMMs: square, of few rows, of primes, of a transposed matrix. Convolutions: 3x3, 1x1, strided
#: and 7x7 windows, with channels last and first.
PRODUCTS = {
    "gemm-512": "gemm:512,512,512",
    "gemm-1024": "gemm:1024,1024,1024",
    "gemm-wide": "gemm:128,3072,768",
    "gemm-primes": "gemm:197,1021,509",
    "gemm-transposed": "gemm:128,768,3072,transpose_b=true",
    "conv-56": "conv2d:1,56,56,64,64,3,padding=1",
    "conv-14": "conv2d:1,14,14,256,256,3,padding=1",
    "conv-7": "conv2d:1,7,7,512,512,3,padding=1",
    "conv-56-first": "conv2d:1,56,56,64,64,3,padding=1,layout=NCHW",
    "conv-28-first": "conv2d:1,28,28,128,128,3,padding=1,layout=NCHW",
    "conv-14-first": "conv2d:1,14,14,256,256,3,padding=1,layout=NCHW",
    "conv-7-first": "conv2d:1,7,7,512,512,3,padding=1,layout=NCHW",
    "conv-1x1": "conv2d:1,28,28,512,128,1",
    "conv-strided": "conv2d:1,56,56,256,512,1,stride=2",
    "conv-7x7": "conv2d:1,224,224,3,64,7,stride=2,padding=3",
}
WORKLOADS |= PRODUCTS


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    args = _arguments()
    work = common.PARTS / args.name
    if args.fresh:
        shutil.rmtree(work, ignore_errors=True)
    settings = {"trials": args.trials}
    if (stored := _load(work / "settings.json")) not in (None, settings):
        print(f"{work} holds a run with {stored}: use another --name or --fresh", file=sys.stderr)
        return 2
    common.write(work / "settings.json", settings)
    started, failed = time.monotonic(), []
    for workload, seed, tool in _pieces(args):
        label = f"{workload}:{seed}:{tool}"
        is_chosen = any(fnmatch.fnmatch(label, pattern) for pattern in args.only)
        if not is_chosen or not _is_missing(work, workload, seed, tool):
            continue
        if args.limit_s is not None and time.monotonic() - started > args.limit_s:
            print("time is up; the same command goes on")
            break
        if not _run_piece(work, workload, seed, tool, settings):
            failed.append(label)
    result = _collect(work, args, settings)
    if result["runs"]:
        common.write(common.RESULTS / "cpu-tuning" / f"{args.name}.json", result)
    print(table_of_workloads(result), render(result), sep="\n\n")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def render(*results: dict[str, Any]) -> str:
    """Stock and PyTorch over Felix: geometric means of the workloads of each file."""
    rows = []
    for data in results:
        for tool in (STOCK, TORCH):
            entries = {e["workload"]: e for e in _summaries(data["runs"]) if e["tool"] == tool}
            if not entries:
                continue
            cold = {name: [entry["cold_ratio"]] for name, entry in entries.items()}
            means = [
                str(ratios.single({name: each[key] for name, each in entries.items()}))
                if None not in (each[key] for each in entries.values())
                else "-"
                for key in ("wall_ratio", "cold_ratio", "warm_ratio")
            ]
            wall, *latencies = means
            made = [len(entries), data["machine"]["cpu"], tool]
            rows.append([*made, wall, latencies[0], *ratios.ends(cold), latencies[1]])
    head = ["workloads", "CPU", "over Felix", "wall time", "latency", "least", "most"]
    return common.table([*head, "with warm caches"], rows)


def table_of_workloads(data: dict[str, Any]) -> str:
    """Medians over seeds, for who ran it."""
    keys = ("workload", "tool", "n_seeds", "wall_s", "cold_us", "warm_us", "wall_ratio")
    keys += ("cold_ratio", "warm_ratio")
    rows = [[entry[key] for key in keys] for entry in _summaries(data["runs"])]
    return common.table([key.replace("_", " ") for key in keys], rows)


# ---------------------------------------------------------------- pieces, from outside


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(DEFAULT))
    parser.add_argument(
        "--products", action="store_true", help="GEMMs and convolutions; results: cpu_products"
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="WORKLOAD:SEED:TOOL",
        help="patterns of the pieces to run; TOOL may be compare",
    )
    parser.add_argument(
        "--limit-s", type=float, default=None, help="start no further piece after this long"
    )
    parser.add_argument("--name", help="of the results file")
    parser.add_argument("--fresh", action="store_true", help="forget what this name has done")
    args = parser.parse_args()
    if args.products:
        args.workloads = list(PRODUCTS)
    args.name = args.name or ("cpu_products" if args.products else "cpu_tuning")
    return args


def _pieces(args: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    """All tools of a workload and seed right after each other, their order alternating."""
    for seed in range(args.seeds):
        for workload in args.workloads:
            for tool in args.tools if seed % 2 == 0 else args.tools[::-1]:
                yield workload, seed, tool
            yield workload, seed, COMPARE


def _is_missing(work: pathlib.Path, workload: str, seed: int, piece: str) -> bool:
    """Whether a piece is to be run: a comparison, whenever it lacks a tool."""
    if piece != COMPARE:
        return not _path(work, workload, seed, piece).exists()
    there = {tool for tool in TOOLS if _path(work, workload, seed, tool).exists()}
    compared = _load(_path(work, workload, seed, COMPARE)) or {}
    return "felix" in there and not there <= compared.keys()


def _path(work: pathlib.Path, workload: str, seed: int, piece: str) -> pathlib.Path:
    return work / f"{workload}-s{seed}" / f"{piece}.json"


def _load(path: pathlib.Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _run_piece(
    work: pathlib.Path, workload: str, seed: int, tool: str, settings: dict[str, int]
) -> bool:
    """Run one piece in a fresh process and add what is known outside of it."""
    path = _path(work, workload, seed, tool)
    path.parent.mkdir(parents=True, exist_ok=True)
    request = {
        "tool": tool,
        "workload": WORKLOADS[workload],
        "seed": seed,
        "path": str(path),
        **settings,
    }
    print(f"{common.now()} {workload} seed {seed}: {tool} ...", flush=True)
    load, start = common.load(), time.perf_counter()
    with open(path.with_suffix(".log"), "w") as log:
        done = subprocess.run(
            [sys.executable, __file__, "--piece", json.dumps(request)],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | {"TVM_NUM_THREADS": str(cpu.available_cores())},
        )
    process_s = time.perf_counter() - start
    piece = _load(path.with_suffix(".piece"))
    if done.returncode or piece is None:
        print(f"  failed, see {path.with_suffix('.log')}", file=sys.stderr)
        return False
    common.write(path, piece | {"date": common.now(), "process_s": process_s, "load": load})
    path.with_suffix(".piece").unlink()
    return True


def _collect(
    work: pathlib.Path, args: argparse.Namespace, settings: dict[str, int]
) -> dict[str, Any]:
    runs = []
    for workload in WORKLOADS:
        for folder in sorted(work.glob(f"{workload}-s*")):
            seed = int(folder.name.rpartition("-s")[2])
            pieces = {piece: _load(folder / f"{piece}.json") for piece in (*TOOLS, COMPARE)}
            done = {piece: value for piece, value in pieces.items() if value is not None}
            if done:
                runs.append({"workload": workload, "seed": seed, **done})
    return common.header("cpu_tuning") | {
        "settings": settings,
        "workloads": {name: WORKLOADS[name] for name in {run["workload"] for run in runs}},
        "runs": runs,
    }


def _summaries(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for name in WORKLOADS for entry in _summary(name, runs)]


def _summary(workload: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of every tool over the seeds in which it was compared with Felix."""
    entries: list[dict[str, Any]] = []
    for tool in (*TOOLS, TORCH):
        compared = [r for r in runs if r["workload"] == workload and tool in r.get(COMPARE, {})]
        if not compared:
            continue
        entry: dict[str, Any] = {"workload": workload, "tool": tool, "n_seeds": len(compared)}
        for name, unit in (("wall", "s"), ("process", "s"), ("cold", "us"), ("warm", "us")):
            key = f"{name}_{unit}"
            if tool == TORCH and unit == "s":
                entry |= {key: None, f"{name}_ratio": None}
                continue
            mine, felix = (
                statistics.median((r if unit == "s" else r[COMPARE])[t][key] for r in compared)
                for t in (tool, "felix")
            )
            entry |= {key: mine, f"{name}_ratio": mine / felix}
        entries.append(entry)
    return entries


if __name__ == "__main__":
    if sys.argv[1:2] == ["--piece"]:
        cpu_pieces.run(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
