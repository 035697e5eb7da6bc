"""What 50 watching clients cost a tuning job on the machine where all of them run.

The clients are one process of its own, with a connection each. They are as light as clients can
be, because they stand for machines elsewhere; what they still take from the tuner is in the figure
and told. Reads a service with a tuner; feeds `benchmarks/service.py polling`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx
import psutil

from benchmarks import common, service_host
from felix import cpus
from felix.workloads import catalogue
from server.store import jobs, rows

CLIENTS = 50
EVERY_S = 2.0


def run(service: service_host.Service, chosen: argparse.Namespace) -> dict[str, Any]:
    """Tune in turn alone and watched; the figures."""
    runs: dict[str, list[dict[str, Any]]] = {"alone": [], "watched": []}
    with service.serving(with_tuner=True) as api:
        _tune(service, chosen, api, False)  # fills the caches
        for turn in range(chosen.pairs):
            kinds = ("alone", "watched") if turn % 2 == 0 else ("watched", "alone")
            for kind in kinds:
                found = _tune(service, chosen, api, kind == "watched")
                runs[kind].append(found)
                print(kind, json.dumps(found))
    found = slowdown(runs["alone"], runs["watched"])
    slower, error = 100 * found["slower"], 100 * found["standard_error"]
    print(
        f"alone {_told(runs['alone'])} s a trial, watched {_told(runs['watched'])}: slower by"
        f" {slower:.1f} +- {error:.1f} %; API and clients took {100 * found['cpu_share']:.1f} %"
        " of the cores"
    )
    told = {"workload": chosen.workload, "trials": chosen.trials, "clients": CLIENTS}
    return told | {"every_s": EVERY_S, "runs": runs} | found


def slowdown(
    alone: Sequence[dict[str, Any]], watched: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """By how much watched jobs are slower: geometric mean over pairs that ran one after the other.

    A machine's speed drifts by more than what is looked for, hence the pairs and the standard
    error. `cpu_share` is the part of the cores that API and clients used while jobs were watched.
    """
    logs = [
        math.log(w["s_per_trial"] / a["s_per_trial"]) for a, w in zip(alone, watched, strict=True)
    ]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    used_s = sum(run["api_cpu_s"] + run["clients_cpu_s"] for run in watched)
    core_s = cpus.available_cores() * sum(run["job_s"] for run in watched)
    return {"slower": math.expm1(statistics.fmean(logs)), "standard_error": error,
            "cpu_share": used_s / core_s}  # fmt: skip


def _told(runs: Sequence[dict[str, Any]]) -> str:
    values = [run["s_per_trial"] for run in runs]
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _tune(
    service: service_host.Service, chosen: argparse.Namespace, api: psutil.Process, watch: bool
) -> dict[str, Any]:
    """One job: seconds a trial, and what API and watchers used."""
    job_id = _submit(service, chosen)
    used_s = service_host.cpu_s(api)
    watchers = None
    if watch:
        told = json.dumps([service.port, service.headers, job_id])
        watchers = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service_polling"],
            env={**service.environment, "WATCHED": told},
            cwd=common.ROOT, stdout=subprocess.PIPE,
        )  # fmt: skip
    job = _ended(service, job_id)
    found: dict[str, Any] = {"s_per_trial": job.elapsed_s / job.n_trials, "trials": job.n_trials}
    if watchers is not None:
        found |= json.loads(watchers.communicate(timeout=60)[0])
    return found | {"job_s": job.elapsed_s, "api_cpu_s": service_host.cpu_s(api) - used_s}


def _submit(service: service_host.Service, chosen: argparse.Namespace) -> int:
    name, params = catalogue.parse_params(chosen.workload)
    workload = {"kind": "operator", "name": name, "params": params}
    body = {"workload": workload, "trials": chosen.trials}
    made = httpx.post(f"{service.url}/v1/jobs", json=body, headers=service.headers, timeout=120)
    return int(made.raise_for_status().json()["id"])


def _ended(service: service_host.Service, job_id: int) -> rows.Job:
    while True:
        with service.db.read() as tx:
            job = jobs.get(tx, job_id)
        if job.finished_at is not None:
            break
        time.sleep(0.5)
    if job.state != "succeeded":
        raise SystemExit(f"job {job_id} {job.state}: {job.message}")
    return job


def main() -> None:
    """In a process of its own: 50 clients until the job has ended; prints what they did."""
    port, headers, job_id = json.loads(os.environ["WATCHED"])
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    began_s = time.process_time()
    requests = sum(asyncio.run(_watch_all(port, lines, job_id)))
    print(json.dumps({"requests": requests, "clients_cpu_s": time.process_time() - began_s}))


async def _watch_all(port: int, headers: str, job_id: int) -> Sequence[int]:
    watching = [_watch(port, headers, job_id, n * EVERY_S / CLIENTS) for n in range(CLIENTS)]
    return await asyncio.gather(*watching)


async def _watch(port: int, headers: str, job_id: int, offset_s: float) -> int:
    """One client; how many requests it made."""
    await asyncio.sleep(offset_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked, seq, is_over = 0, 0, False

    async def get(path: str) -> Any:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: felix\r\n{headers}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(head.decode())
        _, _, length = head.lower().partition(b"content-length:")
        return json.loads(await reader.readexactly(int(length.partition(b"\r\n")[0])))

    while not is_over:
        is_over = (await get(f"/v1/jobs/{job_id}"))["finished_at"] is not None
        seq = (await get(f"/v1/jobs/{job_id}/events?after_seq={seq}"))["last_seq"]
        asked += 2
        await asyncio.sleep(0 if is_over else EVERY_S)
    writer.close()
    return asked


if __name__ == "__main__":
    main()
