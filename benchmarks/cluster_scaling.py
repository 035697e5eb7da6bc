"""What bounds the throughput of a cluster: remote overhead, simulated devices, costs a candidate.

    python benchmarks/cluster_scaling.py [--postgres URL] [--turns 3] [--quick]

Nothing here needs a GPU. Three parts, one after another:

- *overhead*: milliseconds that a candidate costs more through a real Ray cluster on this machine
  (a head with a token, nodes, this process as tuner) than in this process, in batches of 8
  (`support.simulated.overhead`);
- *throughput*: candidates a second of one tuner's real pool over 1 to 1,000 simulated devices that
  take 40 ms for each, beside the rate that is linear in the devices. The nodes are threads of this
  process, and what they do counts to `CPU ms`, the process' CPU time for a candidate;
- *stores*: what a trial takes, one transaction each, by one tuner and by eight at once.
  `--postgres` names a server where databases may be made.

The last table computes what bounds 1 to 1,000 GPUs from these and from costs of searches on an
H200 (`SEARCHES`): every part has a capacity in candidates a second, and the smallest bounds the
whole. `--quick` measures little of everything, to see that it runs.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common
from benchmarks.support.simulated import nodes, overhead, stores, throughput

RUN_S = 0.040
BUILD_S = 0.040
DEVICES = (1, 2, 4, 8, 16, 64, 256, 1000)
#: Candidates for each device; fewer where the pool is the bound and every one costs its time.
N_EACH, N_EACH_OF_MANY, MANY = 50, 4, 256

SEARCHES = common.RESULTS / "gpu-search" / "search_efficiency-gradient-h200.json"
GPUS = (1, 8, 64, 1000)
#: Cores of a host that build, for each of its GPUs.
CORES_EACH = 16
#: Parts of a run in which its tuner waits.
_WAITS = ("build_wait_s", "measure_s")
#: Devices of the row of `throughput` that says what a tuner's pool can do.
_LOADED = 64


def main() -> int:
    """Measure all parts; prints tables and writes the results."""
    args = _arguments()
    turns = 1 if args.quick else args.turns
    data = common.header("cluster_scaling") | {"costs": costs()}
    data["overhead"] = overhead.measure(turns, 16 if args.quick else 64)
    data["throughput"] = _throughput(turns, args.quick)
    data["stores"] = stores.measure(args.postgres, 20 if args.quick else 300)
    data["machine"] = common.machine()
    common.write(args.out, data)
    print(render(data))
    return 0


def _throughput(turns: int, quick: bool) -> list[dict[str, Any]]:
    """Medians over turns, by number of devices; all devices in each turn."""
    times = nodes.Times(build_s=BUILD_S, run_s=RUN_S)
    found: dict[int, list[dict[str, Any]]] = {}
    for _ in range(turns):
        for n in DEVICES:
            n_each = (2 if n > 16 else 10) if quick else (N_EACH_OF_MANY if n >= MANY else N_EACH)
            found.setdefault(n, []).append(throughput.measure(n, times, n_each))
    rows = []
    for n, runs in found.items():
        row = {
            name: statistics.median(run[name] for run in runs)
            for name in ("rate", "cpu_ms", "busy")
        }
        rows.append({"devices": n, "turns": len(runs), **row})
        rows[-1]["linear"] = row["rate"] / (n * rows[0]["rate"])
    return rows


def render(data: dict[str, Any]) -> str:
    """The tables of a results file."""
    return "\n\n".join(
        [
            "Overhead of a node behind Ray, ms a candidate; calls in ms:",
            _overhead_table(data["overhead"]),
            f"One pool over simulated devices of {1e3 * RUN_S:.0f} ms a candidate:",
            common.table(
                ["devices", "candidates 1/s", "of linear", "most busy", "CPU ms"],
                [
                    [row[name] for name in ("devices", "rate", "linear", "busy", "cpu_ms")]
                    for row in data["throughput"]
                ],
            ),
            "A trial in the store:",
            common.table(
                ["store", "tuners", "trials 1/s", "ms", "CPU ms of the tuner"],
                [
                    [row[name] for name in ("store", "writers", "rate", "ms", "tuner_cpu_ms")]
                    for row in data["stores"]
                ],
            ),
            "Capacity of each part, candidates a second, for jobs of one task:",
            _capacity_table(data),
        ]
    )


def _overhead_table(data: dict[str, Any]) -> str:
    rows = [
        [
            f"transport, binaries of {row['binary_bytes']:,} bytes",
            row["here"],
            row["ray"],
            row["added"],
            row["build_call"],
            row["run_call"],
        ]
        for row in data["transport"]
    ]
    whole = data["whole"]
    rows.append(
        [
            f"whole, {whole['workload']} on this CPU",
            whole["local"],
            whole["ray"],
            whole["added"],
            None,
            None,
        ]
    )
    head = ["compared", "without Ray", "with Ray", "added", "a build call", "a run call of 8"]
    return common.table(head, rows)


def costs() -> dict[str, float]:
    """Milliseconds a candidate of searches on an H200: medians over searches."""
    runs = [run for run in common.read(SEARCHES)[0]["runs"] if run["strategy"] == "felix"]

    def median(seconds: Any) -> float:
        return statistics.median(1e3 * seconds(run) / run["n_measured"] for run in runs)

    def computing_s(run: Mapping[str, Any]) -> float:
        waits = sum(run["breakdown"][name] for name in _WAITS)
        return float(run["breakdown"]["total_s"] - waits)

    return {
        "tuner_ms": median(computing_s),
        "search_ms": median(lambda run: run["breakdown"]["search_s"]),
        "schedule_ms": median(lambda run: run["breakdown"]["schedule_s"]),
        "build_ms": median(lambda run: run["breakdown"]["build_work_s"]),
        "device_ms": median(lambda run: run["breakdown"]["run_work_s"]),
    }


def capacities(data: Mapping[str, Any], n_gpus: int, n_jobs: int) -> dict[str, float]:
    """Candidates a second that each part can do, the jobs being processes of their own."""
    spent, loaded = data["costs"], _loaded(data)
    store = data["stores"][-1]
    return {
        "GPUs": n_gpus * 1e3 / spent["device_ms"],
        f"builders, {CORES_EACH} cores a GPU": n_gpus * CORES_EACH * 1e3 / spent["build_ms"],
        "search": n_jobs * 1e3 / spent["tuner_ms"],
        "pools": n_jobs * loaded["rate"],
        f"store, {store['store']}": store["rate"],
    }


def bound(capacity: Mapping[str, float]) -> str:
    """The part that can do least."""
    return min(capacity, key=lambda part: capacity[part])


def _capacity_table(data: Mapping[str, Any]) -> str:
    """Capacities for one job and for a job a GPU, and what bounds each."""
    rows = []
    for n_gpus in GPUS:
        for n_jobs in sorted({1, n_gpus}):
            capacity = capacities(data, n_gpus, n_jobs)
            least = bound(capacity)
            rows.append([n_gpus, n_jobs, *capacity.values(), least.partition(",")[0]])
    return common.table(["GPUs", "jobs", *capacities(data, 1, 1), "bound"], rows)


def _loaded(data: Mapping[str, Any]) -> Mapping[str, float]:
    row: Mapping[str, float] = next(row for row in data["throughput"] if row["devices"] == _LOADED)
    return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--postgres", help="URL of a server, to measure its store as well")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--out", type=pathlib.Path, default=common.RESULTS / "scaling" / "cluster_scaling.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
