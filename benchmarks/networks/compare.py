"""Whole networks: Felix by seconds of tuning beside PyTorch, ONNX Runtime and stock MetaSchedule.

    python -m benchmarks.networks.compare [--networks resnet50 ...] [--dtypes float32 bfloat16]
    python -m benchmarks.networks.compare --limit-s 500 --picture networks-h200.svg
    python -m benchmarks.networks.compare --small --target llvm --seconds 5 10 --out networks.json

A case is a network with a batch size and an element type. It has three pieces, each in a process
of its own:
  felix   `felix.optimize` until each number of --seconds, in one session
  stock   MetaSchedule's `tune_relax` on the same import, for as long
  times   what both had at each of these moments, PyTorch eager, eager in a CUDA graph, inductor
          (default, reduce-overhead, max-autotune) and ONNX Runtime, timed in turns by one process

The formula cache is empty, and starting measuring workers counts. A latency is that of one call by
wall clock, from the call to the end of its last kernel: the median over --calls in turns. The
graphs of Felix and stock have copies of inputs and outputs in their time, that of PyTorch eager
has none. TF32 is off.

Pieces that are done stay in the work folder and are not run again; the results file is rewritten
after each case. A peer that fails is recorded with its error, and does not stop the others.
Durations in seconds, latencies in microseconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.networks import results
from benchmarks.support import common

NETWORKS = ("resnet50", "mobilenet_v2", "r3d18", "dcgan", "vit_b32", "bert_base", "llama")
DTYPES = ("float32", "bfloat16")
#: Names of `felix.frontend.Fusion`, which is not imported here: see `_piece`.
FUSIONS = ("rules", "planned")
PIECES = ("felix", "stock", "times")
#: Turns of each contender.
TURNS = 5
#: Longest time of one contender's turn.
TURN_S = 1.0


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    args = _arguments()
    end = time.monotonic() + (args.limit_s if args.limit_s is not None else float("inf"))
    failed = []
    for case in _cases(args):
        failed += _run_case(case, args, end)
        _collect(args)
        if time.monotonic() > end:
            print("time is up; the same command goes on")
            break
    data = _collect(args)
    if data["runs"]:
        print(results.table_of_peers(data["runs"]), results.render(data), sep="\n\n")
        if args.picture is not None:
            results.picture(data, args.picture)
    else:
        failed = failed or ["no case is complete, so no results are written"]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


# ---------------------------------------------------------------- cases, from outside


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--small", action="store_true", help="the networks' small variants")
    parser.add_argument("--target", default="cuda")
    parser.add_argument(
        "--seconds",
        nargs="+",
        type=float,
        default=[30.0, 60.0, 120.0],
        help="of tuning: points of the curve",
    )
    parser.add_argument(
        "--fusion", choices=FUSIONS, help="how Felix groups operators (as it does by itself)"
    )
    parser.add_argument("--calls", type=int, default=200, help="timed calls of each contender")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        metavar="CONTENDER",
        help="leave these out, like stock or max-autotune",
    )
    parser.add_argument("--limit-s", type=float, help="start no further piece after this long")
    parser.add_argument("--work", type=pathlib.Path, default=common.PARTS / "networks")
    out = common.RESULTS / "networks" / "networks-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    args = parser.parse_args()
    args.seconds = tuple(sorted(set(args.seconds)))
    if args.seconds[0] <= 0 or args.calls < 1 or min(args.batches) < 1:
        parser.error("seconds, calls and batches must be positive")
    return args


def _cases(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Fields of `tuned.Case`."""
    for dtype in args.dtypes:
        for batch in args.batches:
            for name in args.networks:
                yield {
                    "name": name,
                    "batch": batch,
                    "dtype": dtype,
                    "small": args.small,
                    "target": args.target,
                    "seconds": args.seconds,
                    "fusion": args.fusion,
                }


def _run_case(case: Mapping[str, Any], args: argparse.Namespace, end: float) -> list[str]:
    """Run the missing pieces of a case until the time is up; those that failed."""
    folder = args.work / results.label(case)
    for piece in PIECES:
        path = folder / f"{piece}.json"
        if path.exists() or piece in args.without:
            continue
        if time.monotonic() > end:
            return []
        print(f"{common.now()} {results.label(case)}: {piece} ...", flush=True)
        request = {
            "case": dict(case),
            "piece": piece,
            "calls": args.calls,
            "without": list(args.without),
        }
        if not _run(request, path):
            print(f"  failed, see {path.with_suffix('.log')}", file=sys.stderr)
            if piece != "stock":  # stock is a contender like others
                return [f"{results.label(case)}:{piece}"]
    return []


def _run(request: dict[str, Any], path: pathlib.Path) -> bool:
    """One piece in a process of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    process = multiprocessing.get_context("spawn").Process(
        target=_piece, args=(request, str(path))
    )
    process.start()
    process.join()
    return process.exitcode == 0 and path.exists()


def _collect(args: argparse.Namespace) -> dict[str, Any]:
    """All cases that were timed; written to the results file if there are any."""
    runs = []
    for path in sorted(args.work.glob("*/times.json")):
        pieces = {
            piece: json.loads(file.read_text())
            for piece in PIECES
            if (file := path.with_name(f"{piece}.json")).exists()
        }
        runs.append({**pieces["times"]["case"], **pieces})
    runs.sort(
        key=lambda run: (run["dtype"] != "float32", run["batch"], NETWORKS.index(run["name"]))
    )
    where = [run["times"]["measured_on"] for run in runs]
    latest = max(where, key=lambda one: str(one["date"])) if where else {}
    commits = dict.fromkeys(str(one["commit"]) for one in where)
    data = common.header("networks") | latest | {"commit": ", ".join(commits), "runs": runs}
    if runs:
        common.write(args.out, data)
    return data


# ---------------------------------------------------------------- pieces, inside


def _piece(request: dict[str, Any], path: str) -> None:
    file = pathlib.Path(path)
    with file.with_suffix(".log").open("w") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    if request["piece"] != "felix" and "stock" not in request["without"]:
        # TVM's intrinsics come before Felix, which puts a stub in their place: they take long.
        importlib.import_module("tvm.s_tir.tensor_intrin")
    from benchmarks.networks import tuned

    case = tuned.Case(**request["case"])
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FELIX_CACHE_DIR"] = scratch
        if request["piece"] == "felix":
            result = tuned.tune_felix(case, file.parent)
        elif request["piece"] == "stock":
            result = tuned.tune_stock(case, file.parent)
        else:
            result = _times(case, file.parent, request)
    where = common.header("networks") | {"device": _device(case.target)}
    del where["benchmark"]
    common.write(file, {"case": request["case"], "measured_on": where, **result})


def _device(spec: str) -> str:
    from felix import target

    return str(target.hardware(target.parse(spec)).name)


def _times(case: Any, folder: pathlib.Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies of all contenders, in turns."""
    import torch

    from felix.cli.comparison import torch_child
    from felix.target import cpu

    torch_child.use_full_precision()
    torch.set_num_threads(cpu.available_cores())
    model, inputs = case.make()
    calls, failures, errors = _contenders(case, folder, request, model, inputs)
    latencies_us = _in_turns(calls, request["calls"], inputs[0].is_cuda)
    return {
        "latency_us": {name: statistics.median(each) for name, each in latencies_us.items()},
        "calls": {name: len(each) for name, each in latencies_us.items()},
        "max_error": errors,
        "failures": failures,
    }


def _contenders(
    case: Any, folder: pathlib.Path, request: Mapping[str, Any], model: Any, inputs: Any
) -> tuple[dict[str, Callable[[], Any]], dict[str, str], dict[str, float]]:
    """Calls, errors of what cannot be called, and differences from PyTorch eager, by name."""
    import torch

    calls: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    errors: dict[str, float] = {}
    with torch.no_grad():
        expected = _leaves(model(*inputs))
    for name, make in _makers(case, folder, model, inputs):
        if name in request["without"]:
            continue
        begin = time.perf_counter()
        try:
            call = make()
            errors[name] = _error(_leaves(call()), expected)
            calls[name] = call
        except Exception as error:  # a contender may raise anything: the others are timed
            lines = str(error).strip().splitlines() or [""]
            failures[name] = f"{type(error).__name__}: {lines[0]}"[:300]
        print(f"{name}: {time.perf_counter() - begin:.1f} s {failures.get(name, '')}", flush=True)
    return calls, failures, errors


def _makers(
    case: Any, folder: pathlib.Path, model: Any, inputs: Any
) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
    """What makes each contender ready, by name: tuned ones, then peers."""
    import functools

    from benchmarks.networks import peers, tuned

    network = functools.cache(case.read)
    before = None
    for seconds in case.seconds:
        known = tuned.snapshot(folder, "felix", seconds)
        if known.exists():
            yield (
                results.point("felix", seconds),
                functools.partial(tuned.build_felix, case, known, before),
            )
            before = known
        database = tuned.snapshot(folder, "stock", seconds)
        if database.exists():
            yield (
                results.point("stock", seconds),
                lambda database=database: tuned.build_stock(network(), database),
            )
    for name in peers.CUDA if inputs[0].is_cuda else peers.CPU:
        yield name, functools.partial(peers.make, name, model, inputs)


def _leaves(result: Any) -> list[Any]:
    """The tensors of a result, copied: a later call may overwrite them."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _error(actual: list[Any], expected: list[Any]) -> float:
    from felix.network import agreement

    pairs = zip(actual, expected, strict=True)
    return max(agreement.difference(one.to(other.device), other) for one, other in pairs)


def _in_turns(
    calls: Mapping[str, Callable[[], Any]], count: int, is_gpu: bool
) -> dict[str, list[float]]:
    """Latencies of single calls: some of each contender, then some more of each."""
    import torch

    latencies_us: dict[str, list[float]] = {name: [] for name in calls}
    synchronise = torch.cuda.synchronize if is_gpu else lambda: None
    with torch.no_grad():
        for _ in range(TURNS):
            for name, call in calls.items():
                call()
                synchronise()
                end = time.perf_counter() + TURN_S
                for _ in range(max(1, count // TURNS)):
                    begin = time.perf_counter()
                    call()
                    synchronise()
                    latencies_us[name].append((time.perf_counter() - begin) * 1e6)
                    if time.perf_counter() > end:
                        break
    return latencies_us


if __name__ == "__main__":
    sys.exit(main())
