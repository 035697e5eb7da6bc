"""Response times of a full store, what watching clients and hostile jobs cost one.

    python benchmarks/service.py answers [--database URL]
    python benchmarks/service.py polling [--workload gemm:256,256,256] [--trials 160] [--pairs 16]
    python benchmarks/service.py hostile [--workload gemm:256,256,256] [--trials 64] [--keys 2]
    python benchmarks/service.py start [--workload gemm:256,256,256] [--trials 64]

`answers`: 200 finished jobs with 100,000 trials (`full_store`); one client requests each page 100
times, one request at a time, over a socket from an API server in a process of its own. The median
is to be under 50 ms on two cores. Responses that clients could share are made anew for each
request.

`polling`: one job is tuned on this machine's CPU, with and without 50 clients that request the
job and its new events every two seconds, in turn and `--pairs` times. Compared is the tuning time
a trial, with the same seed and cost model, between the two jobs of a pair. API, clients, tuner and
measured kernels share the machine, so this is the worst case; the share of the cores that API and
clients took is reported as well. It is to be slower by less than 5 %.

`hostile`: 30 jobs of two keys (`--keys`) that would hold a tuner for minutes wait for one tuner,
and a normal key submits one. It is to begin within 30 s and to take at most 1.3 times as much of a
tuner as alone; a cancelled job is to free its tuner within 5 s.

`start`: API and tuner are started, and the first job is submitted as soon as the API answers. Its
curve is to have a point within 10 s.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import httpx
import psutil

from benchmarks.support import common
from benchmarks.support.service import full_store
from benchmarks.support.service import hostile as service_hostile
from benchmarks.support.service import polling as service_polling
from benchmarks.support.service import process as service_process

N_JOBS = 200
N_TRIALS = 500
N_REQUESTS = 100
#: So short that every response is made anew; clients with equal requests would share it.
NO_SHARING_S = "0.000001"


def main() -> int:
    """Run one mode; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["answers", "polling", "hostile", "start"])
    parser.add_argument("--database", help="URL of an empty database (default: an SQLite file)")
    parser.add_argument("--workload", default="gemm:256,256,256")
    parser.add_argument("--trials", type=int, help="default: 160, hostile 64")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--keys", type=int, default=2, help="of hostile jobs (default: 2)")
    chosen = parser.parse_args()
    chosen.trials = chosen.trials or (160 if chosen.mode == "polling" else 64)
    result = common.header(f"service-{chosen.mode}")
    with tempfile.TemporaryDirectory() as folder:
        service = service_process.Service(pathlib.Path(folder), chosen.database)
        modes = {
            "answers": _answers,
            "polling": service_polling.run,
            "hostile": service_hostile.run,
            "start": service_process.first_point,
        }
        result |= modes[chosen.mode](service, chosen)
    suffix = "" if chosen.database is None else "-postgresql"
    path = common.RESULTS / "service" / f"service-{chosen.mode}{suffix}.json"
    common.write(path, result)
    print(f"written: {path}")
    return 0


def _answers(service: service_process.Service, chosen: argparse.Namespace) -> dict[str, Any]:
    service.environment["FELIX_CACHE_TTL_S"] = NO_SHARING_S
    began_s = time.perf_counter()
    full_store.fill(service.db, service.blobs, N_JOBS, N_TRIALS)
    print(f"{N_JOBS} jobs, {N_JOBS * N_TRIALS} trials in {time.perf_counter() - began_s:.0f} s")
    middle, last = N_JOBS // 2, N_JOBS
    overlay = "&".join(f"job={number}" for number in range(1, 9))
    paths = {
        "list, 50 jobs": "/v1/jobs",
        "list, filtered": "/v1/jobs?state=succeeded&tag=even&q=copy",
        "list, all 200 jobs": "/v1/jobs?limit=200",
        "job": f"/v1/jobs/{middle}",
        "curve": f"/v1/jobs/{middle}/curve",
        "curves of 8 jobs": f"/v1/curves?{overlay}",
        "tasks": f"/v1/jobs/{middle}/tasks",
        "100 trials": f"/v1/jobs/{middle}/trials?after=300",
        "predicted, 500 trials": f"/v1/jobs/{middle}/predicted",
        "search": f"/v1/jobs/{middle}/search",
        "new events": f"/v1/jobs/{last}/events?after_seq=400",
        "500 trials as CSV": f"/v1/jobs/{middle}/trials.csv",
        "page of jobs": "/dashboard",
        "page of a job": f"/dashboard/jobs/{middle}",
        "its points": f"/dashboard/data/jobs/{middle}/points",
    }
    answers = {}
    client = httpx.Client(base_url=service.url, headers=service.headers, timeout=60)
    with service.serving() as server, client:
        _, _, key = service.headers["Authorization"].partition(" ")
        client.post("/dashboard/login", data={"key": key})
        for name, path in paths.items():
            times = answers[name] = _request_times(client, path, server)
            print(
                f"{name:24} median {times['median_ms']:6.1f} ms   95 % {times['p95_ms']:6.1f} ms"
                f"   server CPU {times['server_cpu_ms']:5.1f} ms   {times['bytes'] >> 10:4} KiB"
            )
    dialect = service.db.engine.dialect.name
    return {"database": dialect, "jobs": N_JOBS, "trials": N_JOBS * N_TRIALS, "answers": answers}


def _request_times(client: httpx.Client, path: str, server: psutil.Process) -> dict[str, Any]:
    """Times of requests for one path.

    `server_cpu_ms` is of the API's process and does not depend on what else runs.
    """
    times_ms: list[float] = []
    size, used_s = 0, 0.0
    for turn in range(N_REQUESTS + 5):
        began_s = time.perf_counter()
        response = client.get(path)
        took_ms = 1e3 * (time.perf_counter() - began_s)
        if turn == 4:  # the first ones open connections
            used_s = service_process.cpu_s(server)
        if turn > 4:
            times_ms.append(took_ms)
        response.raise_for_status()
        size = len(response.content)
    ordered = sorted(times_ms)
    return {
        "median_ms": statistics.median(ordered),
        "p95_ms": ordered[int(0.95 * len(ordered))],
        "server_cpu_ms": 1e3 * (service_process.cpu_s(server) - used_s) / len(ordered),
        "bytes": size,
    }


if __name__ == "__main__":
    raise SystemExit(main())
