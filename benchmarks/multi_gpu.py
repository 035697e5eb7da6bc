"""A job of several tasks on one GPU and on several of the same machine, in turns.

    python benchmarks/multi_gpu.py --devices 0 1 [--trials 512] [--turns 3]
    python benchmarks/multi_gpu.py --simulated 2 --run-ms 40 --build-ms 500

The tasks are tuned together with `felix.tune`, on the first GPU alone and then on all that are
named, with the same seed: one turn. Compared are seconds of the whole job and candidates a second;
the parts of a candidate say what the tuner's thread waited for. Builders are as many as the pool
makes, one a core, for one GPU as for several. Latencies of the winners say whether more GPUs cost
quality: candidates of more rounds are on their way when the next one is searched.

With `--simulated N` there is no GPU: N devices take `--run-ms` for a candidate and `--builders`
take `--build-ms`, while search, scheduling and the rounds are real.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common
from benchmarks.support.simulated import jobs, nodes

#: Parts of a candidate in the table: of the tuner's thread, then of the workers.
PARTS = (
    "extract", "search", "schedule", "train", "build_wait", "measure", "other", "build_work",
    "run_work",
)  # fmt: skip

#: Trials a task of the job that is not counted.
WARM_TRIALS = 16

#: Tunes on so many devices, in this turn, for so many trials.
Tune = Callable[[int, int, int], dict[str, Any]]


def main() -> int:
    """Tune in turns; prints a table and writes the results."""
    args = _arguments()
    counts, tune = _simulated(args) if args.simulated else _on_gpus(args)
    # What a process pays once, and the formula cache.
    tune(counts[0], -1, min(args.trials, WARM_TRIALS * len(args.workloads)))
    runs = [
        tune(count, turn, args.trials) | {"turn": turn}
        for turn in range(args.turns) for count in counts
    ]  # fmt: skip
    data = common.header("multi_gpu") | {
        "device": "simulated" if args.simulated else _name(args.devices[0]),
        "workloads": args.workloads, "runs": runs, "summary": summary(runs),
    }  # fmt: skip
    common.write(args.out, data)
    print(render(data))
    return 0


def _on_gpus(args: argparse.Namespace) -> tuple[list[int], Tune]:
    def tune(count: int, turn: int, trials: int) -> dict[str, Any]:
        from felix import workloads
        from felix.tuning import options

        tasks = [workloads.parse(text, target="cuda") for text in args.workloads]
        chosen = options.TuneOptions(
            devices=tuple(args.devices[:count]), search_processes=args.search_processes
        )
        return jobs.run(tasks, trials, turn + 1, chosen) | {"devices": count}

    return sorted({1, len(args.devices)}), tune


def _simulated(args: argparse.Namespace) -> tuple[list[int], Tune]:
    times = nodes.Times(
        build_s=args.build_ms / 1e3, run_s=args.run_ms / 1e3, prepare_s=args.run_ms / 1e3
    )

    def tune(count: int, turn: int, trials: int) -> dict[str, Any]:
        return jobs.tuned(
            args.workloads, trials, turn + 1, count, args.builders, times, args.search_processes
        )

    return sorted({1, args.simulated}), tune


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By number of devices: medians over turns, and the speed-up over one."""
    rows: list[dict[str, Any]] = []
    for count in sorted({run["devices"] for run in runs}):
        some = [run for run in runs if run["devices"] == count]
        median = functools.partial(_median, some)
        rows.append({
            "devices": count, "turns": len(some), "seconds": median("seconds"),
            "rate": median("rate"), "cpu_ms": median("cpu_ms"),
            "ms": {part: statistics.median(run["ms"][part] for run in some) for part in PARTS},
            "latency_us": statistics.median(_mean_us(run) for run in some),
        })  # fmt: skip
        rows[-1]["speed_up"] = rows[0]["seconds"] / rows[-1]["seconds"]
    return rows


def _median(runs: Sequence[dict[str, Any]], field: str) -> float:
    return statistics.median(run[field] for run in runs)


def _mean_us(run: dict[str, Any]) -> float:
    """Geometric mean of the winners."""
    return statistics.geometric_mean([us for us in run["best_us"] if us is not None])


def render(data: dict[str, Any]) -> str:
    """The tables of a results file."""
    rows = data["summary"]
    head = ["devices", "turns", "job s", "speed-up", "candidates 1/s", "winners us"]
    fields = ("devices", "turns", "seconds", "speed_up", "rate", "latency_us")
    parts = [[row["devices"], *(row["ms"][part] for part in PARTS)] for row in rows]
    return "\n\n".join([
        common.table(head, [[row[field] for field in fields] for row in rows]),
        "Milliseconds a candidate:",
        common.table(["devices", *(part.replace("_", " ") for part in PARTS)], parts),
    ])  # fmt: skip


def _name(device: int) -> str:
    import tvm

    return str(tvm.cuda(device).device_name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[0, 1], help="GPUs")
    parser.add_argument("--simulated", type=int, default=0, help="devices instead of GPUs")
    parser.add_argument("--run-ms", type=float, default=40.0, help="of a simulated candidate")
    parser.add_argument("--build-ms", type=float, default=500.0, help="of a simulated build")
    parser.add_argument("--builders", type=int, default=32, help="simulated builds at a time")
    parser.add_argument("--workloads", nargs="+", default=list(jobs.WORKLOADS))
    parser.add_argument("--search-processes", type=int, help="0: none (as many as pay)")
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--out", type=pathlib.Path, default=common.RESULTS / "scaling" / "multi_gpu.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
