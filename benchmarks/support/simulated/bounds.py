"""Which part bounds the candidates a second of a cluster: arithmetic on measured costs.

Every part has a capacity in candidates a second; the smallest bounds the whole. Costs of the
search, of builds and of GPUs are those of searches on an H200 (`SEARCHES`, strategy felix), the
others those of the same results file of `benchmarks/cluster_scaling.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.support import common

SEARCHES = common.RESULTS / "gpu-search" / "search_efficiency-gradient-h200.json"
GPUS = (1, 8, 64, 1000)
#: Cores of a host that build, for each of its GPUs.
CORES_EACH = 16
#: Parts of a run in which its tuner waits.
_WAITS = ("build_wait_s", "measure_s")
#: Devices of the row of `throughput` that says what a tuner's pool can do.
_LOADED = 64


def costs() -> dict[str, float]:
    """Milliseconds a candidate of searches on an H200: medians over searches."""
    runs = [run for run in json.loads(SEARCHES.read_text())["runs"] if run["strategy"] == "felix"]

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


def table(data: Mapping[str, Any]) -> str:
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
