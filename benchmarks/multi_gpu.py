"""A job of several tasks on one GPU and on several of the same machine, in turns.

    python benchmarks/multi_gpu.py --devices 0 1 [--trials 512] [--turns 3]
    python benchmarks/multi_gpu.py --devices 0 1 --cluster 127.0.0.1:6379
    python benchmarks/multi_gpu.py --simulated 2 --run-ms 40 --build-ms 500

The tasks are tuned together with `felix.tune`, on the first GPU alone and then on all that are
named, with the same seed: one turn. Compared are seconds of the whole job and candidates a second;
the parts of a candidate say what the tuner's thread waited for. Builders are as many as the pool
makes, one a core, for one GPU as for several. Latencies of the winners say whether more GPUs cost
quality: candidates of more rounds are on their way when the next one is searched.

With `--cluster` the job is also tuned on all GPUs of that Ray cluster, which `felix worker`
brought there. It is for a cluster of this machine, so that GPUs and cores are the same.

With `--simulated N` there is no GPU: N devices take `--run-ms` for a candidate and `--builders`
take `--build-ms`, while search, scheduling and the rounds are real.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common
from benchmarks.support.simulated import nodes

if TYPE_CHECKING:
    import felix
    from felix.tuning import options, results

#: Parts of a candidate in the table: of the tuner's thread, then of the workers.
PARTS = (
    "extract",
    "search",
    "schedule",
    "train",
    "build_wait",
    "measure",
    "other",
    "build_work",
    "run_work",
)

#: One of each kind of program.
WORKLOADS = (
    "gemm:1024,1024,1024",
    "conv2d:1,56,56,64,64,3,padding=1",
    "softmax:1536x128",
    "layer_norm:8192x768",
)
#: Trials a task of the job that is not counted.
WARM_TRIALS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What measures: so many devices, of this process or of a cluster."""

    devices: int
    cluster: bool = False


#: Tunes there, in this turn, for so many trials.
Tune = Callable[[Place, int, int], dict[str, Any]]


def main() -> int:
    """Tune in turns; prints a table and writes the results."""
    args = _arguments()
    places, tune = _simulated(args) if args.simulated else _on_gpus(args)
    # What a process pays once, and the formula cache.
    for place in (places[0], *(each for each in places if each.cluster)):
        tune(place, -1, min(args.trials, WARM_TRIALS * len(args.workloads)))
    runs = [
        tune(place, turn, args.trials) | dataclasses.asdict(place) | {"turn": turn}
        for turn in range(args.turns)
        for place in places
    ]
    data = common.header("multi_gpu") | {
        "device": "simulated" if args.simulated else _name(args.devices[0]),
        "workloads": args.workloads,
        "summary": summary(runs),
    }
    common.write(args.out, data)
    print(render(data))
    return 0


def _on_gpus(args: argparse.Namespace) -> tuple[list[Place], Tune]:
    def tune(place: Place, turn: int, trials: int) -> dict[str, Any]:
        from felix import workloads
        from felix.cli import measuring
        from felix.tuning import options

        chosen = options.TuneOptions(search_processes=args.search_processes)
        if place.cluster:
            chosen = dataclasses.replace(chosen, pool=measuring.pool_of_cluster(args.cluster))
        else:
            devices = tuple(args.devices[: place.devices])
            chosen = dataclasses.replace(chosen, devices=devices)
        tasks = [workloads.parse(text, target="cuda") for text in args.workloads]
        return _job(tasks, trials, turn + 1, chosen)

    places = [Place(count) for count in sorted({1, len(args.devices)})]
    if args.cluster:
        places.append(Place(len(args.devices), cluster=True))
    return places, tune


def _simulated(args: argparse.Namespace) -> tuple[list[Place], Tune]:
    times = nodes.Times(
        build_s=args.build_ms / 1e3, run_s=args.run_ms / 1e3, prepare_s=args.run_ms / 1e3
    )

    def tune(place: Place, turn: int, trials: int) -> dict[str, Any]:
        return _tuned(
            args.workloads,
            trials,
            turn + 1,
            place.devices,
            args.builders,
            times,
            args.search_processes,
        )

    return [Place(count) for count in sorted({1, args.simulated})], tune


def _tuned(
    texts: Sequence[str],
    trials: int,
    seed: int,
    n_devices: int,
    n_builders: int,
    times: nodes.Times,
    search_processes: int | None = None,
) -> dict[str, Any]:
    """One job on so many simulated devices."""
    from felix import workloads
    from felix.measure.cluster import pool
    from felix.tuning import options

    cluster = nodes.Cluster(n_devices, n_builders, times)
    tasks = [workloads.parse(text, target=nodes.TARGET) for text in texts]
    chosen = options.TuneOptions(
        pool=lambda task: pool.ClusterPool(task, cluster, nodes.OPTIONS),
        search_processes=search_processes,
    )
    return _job(tasks, trials, seed, chosen) | {"devices": n_devices, "busy": cluster.most_busy}


def _job(
    tasks: Sequence[felix.Task], trials: int, seed: int, chosen: options.TuneOptions
) -> dict[str, Any]:
    """One job: its seconds, those of its parts, and the latencies that it found."""
    import felix

    start, start_cpu = time.perf_counter(), time.process_time()
    result = felix.tune(list(tasks), trials=trials, seed=seed, options=chosen)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    measured = sum(len(each.records) for each in result.results)
    return {
        "trials": measured,
        "seconds": seconds,
        "rate": measured / seconds,
        "cpu_ms": 1e3 * cpu_s / measured,
        "ms": _ms(result, measured),
        "best_us": [each.best_or_none and each.best_or_none.latency_us for each in result.results],
    }


def _ms(result: results.NetworkResult, measured: int) -> dict[str, float]:
    """Milliseconds a candidate of each part of the tuner's thread, and of the workers."""
    breakdown = result.breakdown
    parts = {
        field.name.removesuffix("_s"): 1e3 * getattr(breakdown, field.name) / measured
        for field in dataclasses.fields(breakdown)
    }
    return parts | {"other": 1e3 * breakdown.other_s / measured}


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By what measured: medians over turns, and the speed-up over one device."""
    rows: list[dict[str, Any]] = []
    where = [Place(run["devices"], run["cluster"]) for run in runs]
    for place in dict.fromkeys(where):
        some = [run for run, its in zip(runs, where, strict=True) if its == place]
        median = functools.partial(_median, some)
        rows.append(
            dataclasses.asdict(place)
            | {
                "turns": len(some),
                "seconds": median("seconds"),
                "rate": median("rate"),
                "cpu_ms": median("cpu_ms"),
                "ms": {part: statistics.median(run["ms"][part] for run in some) for part in PARTS},
                "latency_us": statistics.median(_mean_us(run) for run in some),
            }
        )
        rows[-1]["speed_up"] = rows[0]["seconds"] / rows[-1]["seconds"]
    return rows


def _median(runs: Sequence[dict[str, Any]], field: str) -> float:
    return statistics.median(run[field] for run in runs)


def _mean_us(run: dict[str, Any]) -> float:
    """Geometric mean of the winners."""
    return statistics.geometric_mean([us for us in run["best_us"] if us is not None])


def render(*results: dict[str, Any]) -> str:
    """Every job, on one device and on several."""
    rows = [
        [
            data["device"],
            len(data["workloads"]),
            f"{row['devices']}{', over Ray' * row.get('cluster', False)}",
            *(row[field] for field in ("seconds", "speed_up", "rate", "latency_us")),
            *(row["ms"][part] for part in ("build_work", "run_work")),
        ]
        for data in results
        for row in data["summary"]
    ]
    head = ["device", "tasks", "devices", "job s", "speed-up", "candidates 1/s", "winners us"]
    return common.table([*head, "ms to build one", "ms to run one"], rows)


def _name(device: int) -> str:
    import tvm

    return str(tvm.cuda(device).device_name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[0, 1], help="GPUs")
    parser.add_argument("--cluster", metavar="HOST:PORT", help="Ray cluster of this machine, too")
    parser.add_argument("--simulated", type=int, default=0, help="devices instead of GPUs")
    parser.add_argument("--run-ms", type=float, default=40.0, help="of a simulated candidate")
    parser.add_argument("--build-ms", type=float, default=500.0, help="of a simulated build")
    parser.add_argument("--builders", type=int, default=32, help="simulated builds at a time")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--search-processes", type=int, help="0: none (as many as pay)")
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--out", type=pathlib.Path, default=common.RESULTS / "scaling" / "multi_gpu.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
