"""The same network again, and with another batch: what is reused, and the memory of the host.

    python -m benchmarks.networks.repeated [--networks resnet50 ...] [--dtypes float32 bfloat16]
    python -m benchmarks.networks.repeated --small --target llvm --trials 64

For every network and element type, in a process of its own:
  first   `felix.optimize` with nothing known, --trials candidates over all tasks
  again   the same call: how long it takes, and how many candidates it measures
  batch   the network with --other-batch: of its tasks how many were known, and of how many others
          similar ones were, whose schedules are the first candidates

Each result is compared with PyTorch's as `felix.optimize` does (`max error`, relative to the root
mean square of an output); a network that differs fails. *peak GiB* is the largest memory that this
process and those it started had in main memory at a time, shared pages counted once, seen once a
second. The formula cache is empty at first. Seconds are wall time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.networks import catalogue, results
from benchmarks.support import common

NAME = "networks_repeated"
OUT = common.RESULTS / "networks" / "networks-repeated-h200.json"
_GIB = 1 << 30
_EVERY_S = 1.0
#: Runs a case and writes what it gave to a file.
Run = Callable[[dict[str, Any], str], None]


def main() -> int:
    """Run the cases that the results file lacks; returns 1 if one failed."""
    args = _arguments()
    runs: list[dict[str, Any]] = []
    if args.keep and args.out.exists():
        runs = json.loads(args.out.read_text())["runs"]
    known = {results.label(run) for run in runs}
    every = [
        {
            "name": name,
            "dtype": dtype,
            "small": args.small,
            "target": args.target,
            "batches": [args.batch, args.other_batch],
            "trials": args.trials,
        }
        for dtype in args.dtypes
        for name in args.networks
    ]
    missing = [case for case in every if results.label(case) not in known]
    failed = run_all(NAME, missing, _case, runs, args.out)
    if runs:
        print(results.render_repeated({"runs": runs}))
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--networks", nargs="+", choices=catalogue.NETWORKS, default=catalogue.NETWORKS
    )
    parser.add_argument("--dtypes", nargs="+", choices=catalogue.DTYPES, default=catalogue.DTYPES)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--other-batch", type=int, default=16)
    parser.add_argument("--small", action="store_true", help="the networks' small variants")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--trials", type=int, default=256, help="of each new network")
    parser.add_argument("--keep", action="store_true", help="run what the results file lacks")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    return parser.parse_args()


def run_all(
    benchmark: str,
    cases: Iterable[dict[str, Any]],
    run: Run,
    runs: list[dict[str, Any]],
    out: pathlib.Path,
) -> list[str]:
    """Run cases and add what they gave to `runs`; `out` is rewritten after each.

    Returns:
        The labels of those that failed.
    """
    failed = []
    for case in cases:
        print(f"{common.now()} {results.label(case)} ...", flush=True)
        result = _in_a_process(run, case)
        if result is None:
            failed.append(results.label(case))
            continue
        runs.append(result)
        common.write(out, common.header(benchmark) | {"device": result["device"], "runs": runs})
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return failed


def _in_a_process(run: Run, case: dict[str, Any]) -> dict[str, Any] | None:
    """The results of a case; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run.json"
        process = multiprocessing.get_context("spawn").Process(target=run, args=(case, str(out)))
        process.start()
        process.join()
        return json.loads(out.read_text()) if process.exitcode == 0 else None


def _case(case: dict[str, Any], out: str) -> None:
    folder = pathlib.Path(out).parent
    os.environ["FELIX_CACHE_DIR"] = str(folder)
    from felix import target

    memory = Memory()
    parts = {"first": _optimize(case, case["batches"][0], folder)}
    parts["again"] = _optimize(case, case["batches"][0], folder)
    parts["batch"] = _optimize(case, case["batches"][1], folder)
    device = str(target.hardware(target.parse(case["target"])).name)
    common.write(
        pathlib.Path(out), {**case, **parts, "device": device, "peak_gib": memory.end() / _GIB}
    )


def _optimize(case: Mapping[str, Any], batch: int, folder: pathlib.Path) -> dict[str, Any]:
    """One call of `felix.optimize`: its seconds, its trials, and what it could reuse."""
    import torch

    import felix
    from felix import events
    from felix.database import store
    from felix.network import groups, imported

    place = imported.device_of(felix.target.parse(case["target"]))
    model, inputs = catalogue.make(
        case["name"], batch=batch, dtype=getattr(torch, case["dtype"]), small=case["small"]
    )
    model, inputs = model.to(place), tuple(each.to(place) for each in inputs)
    known, trials = store.Store(folder / "known.sqlite"), 0
    before = store.Store(folder / "before.sqlite")
    if known.path.exists():
        _copy_database(known.path, before.path)

    def count(event: events.Event) -> None:
        nonlocal trials
        trials += isinstance(event, events.Trial)

    begin = time.perf_counter()
    fast = felix.optimize(
        model,
        inputs,
        trials=case["trials"],
        target=case["target"],
        known_results=known.path,
        on_event=count,
    )
    wall_s = time.perf_counter() - begin
    tasks = groups.tasks([each.group for each in fast.report.groups])
    others = [task for task in tasks if before.find(task) is None]
    return {
        "batch": batch,
        "wall_s": wall_s,
        "trials": trials,
        "tasks": len(tasks),
        "known": len(tasks) - len(others),
        "similar": sum(bool(before.similar(task)) for task in others),
        "max_error": fast.report.max_error,
    }


def _copy_database(source: pathlib.Path, target: pathlib.Path) -> None:
    target.unlink(missing_ok=True)
    with sqlite3.connect(source) as opened, sqlite3.connect(target) as copy:
        opened.backup(copy)


class Memory:
    """The most main memory that this process and those below it have, from now to `end`."""

    def __init__(self) -> None:
        self._peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop watching; the largest of the sums, in bytes."""
        self._ended.set()
        self._thread.join()
        return self._peak_bytes

    def _watch(self) -> None:
        while True:
            self._peak_bytes = max(self._peak_bytes, _used_bytes())
            if self._ended.wait(_EVERY_S):
                return


def _used_bytes() -> int:
    """Proportional set sizes of this process and of all below it."""
    import psutil

    total, this = 0, psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return total


if __name__ == "__main__":
    sys.exit(main())
