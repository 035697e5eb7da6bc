"""What 50 watching clients cost a tuning job on the machine where all of them run.

The clients are one process of its own, with a connection each. They are as light as clients can
be, because they stand for machines elsewhere; what they still take from the tuner is in the figure
and reported.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx
import psutil

from benchmarks.support.service import process as service_process
from felix.target import cpu
from felix.workloads import catalogue
from server.store import jobs, rows

CLIENTS = 50
EVERY_S = 2.0


def run(service: service_process.Service, chosen: argparse.Namespace) -> dict[str, Any]:
    """Tune in turn alone and watched; the figures."""
    runs: dict[str, list[dict[str, Any]]] = {"alone": [], "watched": []}
    with service.serving(with_tuner=True) as api:
        _tune(service, chosen, api, False)  # fills the caches
        for turn in range(chosen.pairs):
            kinds = ("alone", "watched") if turn % 2 == 0 else ("watched", "alone")
            for kind in kinds:
                run_of_job = _tune(service, chosen, api, kind == "watched")
                runs[kind].append(run_of_job)
                print(kind, json.dumps(run_of_job))
    cost = slowdown(runs["alone"], runs["watched"])
    slower, error = 100 * cost["slower"], 100 * cost["standard_error"]
    print(
        f"alone {_in_words(runs['alone'])} s a trial, watched {_in_words(runs['watched'])}: slower"
        f" by {slower:.1f} +- {error:.1f} %; API and clients took {100 * cost['cpu_share']:.1f} %"
        " of the cores"
    )
    settings = {"workload": chosen.workload, "trials": chosen.trials, "clients": CLIENTS}
    return settings | {"every_s": EVERY_S, "runs": runs} | cost


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
    core_s = cpu.available_cores() * sum(run["job_s"] for run in watched)
    return {
        "slower": math.expm1(statistics.fmean(logs)),
        "standard_error": error,
        "cpu_share": used_s / core_s,
    }


def _in_words(runs: Sequence[dict[str, Any]]) -> str:
    values = [run["s_per_trial"] for run in runs]
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _tune(
    service: service_process.Service, chosen: argparse.Namespace, api: psutil.Process, watch: bool
) -> dict[str, Any]:
    """One job: seconds a trial, where they went, and what API and clients used."""
    clients = _clients() if watch else None
    job_id = _submit(service, chosen)
    used_s = service_process.cpu_s(api)
    if clients is not None:
        request = {
            "port": service.port,
            "headers": service.headers,
            "job_id": job_id,
            "clients": CLIENTS,
            "every_s": EVERY_S,
        }
        _write(clients, request)
    job = _ended(service, job_id)
    run_of_job: dict[str, Any] = {
        "s_per_trial": job.elapsed_s / job.n_trials,
        "trials": job.n_trials,
        "breakdown": job.breakdown,
    }
    if clients is not None:
        run_of_job |= json.loads(clients.communicate(timeout=60)[0])
    api_cpu_s = service_process.cpu_s(api) - used_s
    return run_of_job | {"job_s": job.elapsed_s, "api_cpu_s": api_cpu_s}


def _clients() -> subprocess.Popen[str]:
    """A process that is ready to watch: its start is none of the clients' cost."""
    clients = subprocess.Popen(
        [sys.executable, str(pathlib.Path(__file__).with_name("polling_clients.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert clients.stdout is not None
    if clients.stdout.readline() != "ready\n":
        raise SystemExit("the clients did not start")
    return clients


def _write(clients: subprocess.Popen[str], request: dict[str, Any]) -> None:
    assert clients.stdin is not None
    clients.stdin.write(json.dumps(request) + "\n")
    clients.stdin.flush()


def _submit(service: service_process.Service, chosen: argparse.Namespace) -> int:
    name, params = catalogue.parse_params(chosen.workload)
    workload = {"kind": "operator", "name": name, "params": params}
    body = {"workload": workload, "trials": chosen.trials}
    response = httpx.post(
        f"{service.url}/v1/jobs", json=body, headers=service.headers, timeout=120
    )
    return int(response.raise_for_status().json()["id"])


def _ended(service: service_process.Service, job_id: int) -> rows.Job:
    while True:
        with service.db.read() as tx:
            job = jobs.get(tx, job_id)
        if job.finished_at is not None:
            break
        time.sleep(0.5)
    if job.state != "succeeded":
        raise SystemExit(f"job {job_id} {job.state}: {job.message}")
    return job
