"""A job of several tasks on one GPU and on several of the same machine, in turns.

    python benchmarks/multi_gpu.py --devices 0 1 [--trials 512] [--turns 3]
    python benchmarks/multi_gpu.py --devices 0 1 --cluster 127.0.0.1:6379
    python benchmarks/multi_gpu.py --devices 0 1 --network resnet50 --search-processes 0 8
    python benchmarks/multi_gpu.py --devices 0 1 --loses-after 20
    python benchmarks/multi_gpu.py --simulated 2 --run-ms 40 --build-ms 500

The tasks are tuned together with `felix.tune`, on the first GPU alone and then on all that are
named, with the same seed: one turn. Compared are seconds of the whole job and candidates a second;
the parts of a candidate say what the tuner's thread waited for. Builders are as many as the pool
makes, one a core, for one GPU as for several. Latencies of the winners say whether more GPUs cost
quality: candidates of more rounds are on their way when the next one is searched. *Busy* is the
share of the job's time in which devices and builders (one a core) had work.

With `--loses-after` the job is also tuned on all GPUs of which the last is lost so many seconds
after the pool is there: whatever runs candidates on it is killed at once from then on.

With `--cluster` the job is also tuned on all GPUs of that Ray cluster, which `felix worker`
brought there. It is for a cluster of this machine, so that GPUs and cores are the same.

With `--simulated N` there is no GPU: N devices take `--run-ms` for a candidate and `--builders`
take `--build-ms`, while search, scheduling and the rounds are real.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common
from benchmarks.support.simulated import nodes

if TYPE_CHECKING:
    import felix
    from felix.measure import local
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
    """What measures: so many devices, of this process or of a cluster, and what searches."""

    devices: int
    cluster: bool = False
    #: processes that search; None: as many as pay
    search_processes: int | None = None
    #: seconds until the last device is lost; None: never
    loses_after_s: float | None = None


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
        "network": args.network,
        "builders": args.builders if args.simulated else None,
        "summary": summary(runs),
    }
    common.write(args.out, data)
    print(render(data))
    return 0


def _on_gpus(args: argparse.Namespace) -> tuple[list[Place], Tune]:
    tasks = _tasks(args)

    def tune(place: Place, turn: int, trials: int) -> dict[str, Any]:
        from felix.cli import measuring
        from felix.tuning import options

        chosen = options.TuneOptions(search_processes=place.search_processes)
        devices = tuple(args.devices[: place.devices])
        if place.cluster:
            chosen = dataclasses.replace(chosen, pool=measuring.pool_of_cluster(args.cluster))
        elif place.loses_after_s is not None:
            pool = functools.partial(_losing, devices, place.loses_after_s)
            chosen = dataclasses.replace(chosen, pool=pool)
        else:
            chosen = dataclasses.replace(chosen, devices=devices)
        return _job(tasks, trials, turn + 1, chosen)

    n = len(args.devices)
    places = [
        Place(count, search_processes=processes)
        for processes in args.search_processes
        for count in sorted({1, n})
    ]
    if args.cluster:
        places.append(Place(n, cluster=True))
    if args.loses_after is not None:
        places.append(Place(n, loses_after_s=args.loses_after))
    return places, tune


def _tasks(args: argparse.Namespace) -> list[felix.Task]:
    """Those of the network, or of the workloads."""
    from felix import workloads
    from felix.network import groups

    if not args.network:
        return [workloads.parse(text, target="cuda") for text in args.workloads]
    from benchmarks.networks import tuned

    case = tuned.Case(
        name=args.network, batch=1, dtype="float32", small=False, target="cuda", seconds=()
    )
    network = case.read()
    return list(groups.tasks(groups.of(network.lowered, network.target)))


def _losing(devices: tuple[int, ...], seconds: float, task: felix.Task) -> local.LocalPool:
    """A pool whose last device is lost after so many seconds."""
    from felix.measure import local

    pool = local.LocalPool(task, local.LocalOptions(devices=devices))
    name = f"runner-{len(devices) - 1}"

    def lose() -> None:
        time.sleep(seconds)
        while pool.is_alive:
            pid = pool.worker_pids()[name]
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    threading.Thread(target=lose, daemon=True).start()
    return pool


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
            place.search_processes,
        )

    places = [
        Place(count, search_processes=processes)
        for processes in args.search_processes
        for count in sorted({1, args.simulated})
    ]
    return places, tune


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
    names = [field.name for field in dataclasses.fields(Place)]
    where = [Place(**{name: run[name] for name in names}) for run in runs]
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
        alone = [row for row in rows if row["devices"] == 1]
        alike = [row for row in alone if row["search_processes"] == place.search_processes]
        rows[-1]["speed_up"] = [*alike, *alone, *rows][0]["seconds"] / rows[-1]["seconds"]
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
            data.get("network") or len(data["workloads"]),
            _place(row),
            *(row[field] for field in ("seconds", "speed_up", "rate", "latency_us")),
            *_busy(data, row),
        ]
        for data in results
        for row in data["summary"]
    ]
    head = ["device", "tasks", "devices", "job s", "speed-up", "candidates 1/s", "winners us"]
    parts = ["ms to build one", "ms to run one", "builders busy", "devices busy"]
    return common.table([*head, *parts], rows)


def _place(row: dict[str, Any]) -> str:
    """What measures and searches, in words."""
    processes = row.get("search_processes")
    lost = row.get("loses_after_s")
    return (
        f"{row['devices']}{', over Ray' * row.get('cluster', False)}"
        + (f", {processes} search processes" if processes is not None else "")
        + (f", one lost after {lost:.0f} s" if lost is not None else "")
    )


def _busy(data: dict[str, Any], row: dict[str, Any]) -> list[Any]:
    """Milliseconds to build and to run a candidate, and shares of builders' and devices' time."""
    build_ms, run_ms = row["ms"]["build_work"], row["ms"]["run_work"]
    builders = data.get("builders") or data["machine"]["cores"]
    per_ms = row["rate"] / 1e3
    return [build_ms, run_ms, per_ms * build_ms / builders, per_ms * run_ms / row["devices"]]


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
    parser.add_argument("--network", help="of benchmarks.networks.catalogue instead of workloads")
    parser.add_argument(
        "--search-processes", type=int, nargs="+", default=[None], help="0: none (as many as pay)"
    )
    parser.add_argument("--loses-after", type=float, help="seconds until the last GPU is lost")
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--out", type=pathlib.Path, default=common.RESULTS / "scaling" / "multi_gpu.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
